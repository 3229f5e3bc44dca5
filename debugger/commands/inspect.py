"""`distdebug inspect`: looks at a job that was started without it, and says who holds it up."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import UsageError
from .as_text import as_text
from .base import Command

if TYPE_CHECKING:
    from ..inspection.inspect import Inspection
    from ..inspection.judging import Limits
    from ..inspection.processes import Job

WATCH_EVERY_S = 5.0


class InspectCommand(Command):
    name = "inspect"
    help = "look at a running job that was started without distdebug"
    epilog = (
        "Ranks are found by their environment (RANK, OMPI_*, PMI_*, SLURM_*), or as children of\n"
        "the program that started them. Nothing is written into them, and none is stopped. That\n"
        "takes the right to trace them: the same user, and `ptrace_scope` 0 or CAP_SYS_PTRACE.\n"
        "\n"
        "examples:\n"
        "  distdebug inspect                       the job on this host\n"
        "  distdebug inspect --job 4711 --stacks   what runs below torchrun, process 4711\n"
        "  distdebug inspect --watch               until something stands still"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--job", metavar="PID", type=int, help="the pid of the job's launcher")
        which.add_argument(
            "--pid",
            metavar="PID",
            type=int,
            action="append",
            help="the pid of a rank; may be given several times",
        )
        parser.add_argument(
            "--watch",
            nargs="?",
            metavar="SECONDS",
            type=float,
            const=WATCH_EVERY_S,
            help="look again every so many seconds (5), until something stands still or the job "
            "has ended",
        )
        parser.add_argument(
            "--still",
            metavar="SECONDS",
            type=float,
            default=5.0,
            help="a rank that sleeps at one place while others wait is late after so long (5), one "
            "that computes there after twice that",
        )
        parser.add_argument(
            "--hang-timeout",
            metavar="SECONDS",
            type=float,
            default=60.0,
            help="any rank is late after so long (60)",
        )
        parser.add_argument(
            "--native", action="store_true", help="C and C++ frames, too (stops each rank shortly)"
        )
        parser.add_argument("--stacks", action="store_true", help="show all stacks as one tree")
        parser.add_argument("--json", action="store_true", help="print the report.json document")
        parser.add_argument(
            "--exit-code", action="store_true", help="end with the exit code of what was found"
        )

    def run(self, args: argparse.Namespace) -> int:
        from ..inspection.inspect import inspect
        from ..inspection.judging import Limits

        limits = Limits(
            still_s=_positive(args.still, "--still"),
            busy_s=2 * args.still,
            moving_s=_positive(args.hang_timeout, "--hang-timeout"),
        )
        if args.watch is None:
            seen = inspect(_job(args), limits, args.native)
        else:
            seen = _watched(args, limits, _positive(args.watch, "--watch"))
        if not any(seen.stacks.values()):
            raise UsageError(_unreadable(seen))
        report = seen.report()
        if args.json:
            sys.stdout.write(json.dumps(report, indent=2) + "\n")
        else:
            sys.stdout.write(as_text(report))
            if args.stacks or args.native:
                sys.stdout.write("\n" + seen.stack_text())
        return seen.exit_code if args.exit_code else 0


def _watched(args: argparse.Namespace, limits: Limits, every_s: float) -> Inspection:
    """The first inspection that finds something, or the last one of a job that has ended."""
    from ..inspection.inspect import inspect
    from ..inspection.judging import at_work

    job = _job(args)
    last = None
    while True:
        seen = inspect(job, limits, args.native)
        if seen.findings or not any(seen.stacks.values()):
            return seen if seen.findings or last is None else last
        last = seen
        print(f"distdebug: {at_work(seen.look)}", file=sys.stderr)
        time.sleep(every_s)
        try:
            job = _job(args)
        except UsageError:
            return last


def _job(args: argparse.Namespace) -> Job:
    from ..inspection.inspect import described
    from ..inspection.processes import find_jobs

    below: Sequence[int] = [args.job] if args.job is not None else args.pid or []
    jobs = find_jobs(below)
    if args.pid:
        jobs = _of_pids(jobs, args.pid)
    if not jobs:
        where = f"process {below[0]} and those below it" if below else "this host"
        raise UsageError(
            f"no rank was found among {where}: no Python process of yours has RANK, "
            "OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID in its environment, or has torch "
            "loaded and a Python parent"
        )
    if len(jobs) > 1:
        rows = "; ".join(described(job) for job in jobs[:5])
        raise UsageError(f"{len(jobs)} jobs run on this host: {rows}: choose one with --job PID")
    return jobs[0]


def _of_pids(jobs: Sequence[Job], pids: Sequence[int]) -> list[Job]:
    from dataclasses import replace

    found = []
    for job in jobs:
        chosen = tuple(one for one in job.processes if one.pid in pids)
        if chosen:
            found.append(replace(job, processes=chosen))
    return found


def _unreadable(seen: Inspection) -> str:
    why = "; ".join(seen.problems[:2]) or "they have ended meanwhile"
    return (
        f"no process of the job could be looked at: {why} (it takes the same user, and "
        "/proc/sys/kernel/yama/ptrace_scope 0 or CAP_SYS_PTRACE)"
    )


def _positive(value: float, flag: str) -> float:
    if not 0 < value < 1e9:
        raise UsageError(f"{flag} takes a number of seconds above 0, not {value:g}")
    return value
