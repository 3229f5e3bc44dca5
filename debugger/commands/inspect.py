"""`distdebug inspect`: looks at a job that was started without it, and says who holds it up."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..system import proc
from . import flags
from .base import Command
from .rendering import add_form_arguments, rendered, scratch_run, written_as_html

if TYPE_CHECKING:
    from ..inspection.inspect import Inspection
    from ..inspection.look import Limits
    from ..inspection.processes import Job


class InspectCommand(Command):
    name = "inspect"
    epilog = (
        "Ranks are found by their environment (RANK, OMPI_*, PMI_*, SLURM_*), or as children of\n"
        "the program that started them. Without --install nothing is written into them, and none\n"
        "is stopped. That takes the right to trace them: the same user, and `ptrace_scope` 0 or\n"
        "CAP_SYS_PTRACE.\n"
        "\n"
        "examples:\n"
        "  distdebug inspect                       the job on this host\n"
        "  distdebug inspect --job 4711 --stacks   what runs below torchrun, process 4711\n"
        "  distdebug inspect --watch               until the job hangs\n"
        "  distdebug inspect --slurm 1234          a job of Slurm's, on all its nodes\n"
        "  distdebug inspect --install --watch     record its calls from now on, and judge them"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--job", metavar="PID", type=flags.pid, help="the pid of the job's launcher"
        )
        which.add_argument(
            "--pid",
            metavar="PID",
            type=flags.pid,
            action="append",
            help="the pid of a rank; may be given several times",
        )
        which.add_argument(
            "--slurm", metavar="ID", help="a job of Slurm's, on all its nodes (`srun --overlap`)"
        )
        which.add_argument("--slurm-part", metavar="ID", help=argparse.SUPPRESS)
        parser.add_argument(
            "--watch",
            nargs="?",
            metavar="SECONDS",
            type=flags.seconds,
            const=5.0,
            help="look again every SECONDS (5), until the job hangs or has ended",
        )
        parser.add_argument(
            "--still",
            metavar="SECONDS",
            type=flags.seconds,
            default=5.0,
            help="others wait for a rank: report it if it sleeps at one line for SECONDS (5), or "
            "polls there for twice as long",
        )
        parser.add_argument(
            "--hang-timeout",
            metavar="SECONDS",
            type=flags.seconds,
            default=60.0,
            help="report any other rank for which others wait after SECONDS (60)",
        )
        parser.add_argument(
            "--native",
            action="store_true",
            help="show C and C++ frames, too; py-spy stops each rank meanwhile, for seconds on a "
            "busy host",
        )
        parser.add_argument(
            "--dump",
            action="store_true",
            help="make the ranks write dumps of torch's flight recorder, if the program has "
            "started torch's debug server, or TORCH_NCCL_DEBUG_INFO_PIPE_FILE is set; dumps that "
            "exist are always read",
        )
        parser.add_argument(
            "--install",
            nargs="?",
            metavar="SECONDS",
            type=flags.seconds,
            const=30.0,
            help="load distdebug into the ranks, which go on: from then on their calls are "
            "recorded and compared (needs torch 2.14 or newer, and gdb or Python 3.14). A rank "
            "must run Python code within SECONDS (30). With --watch, stay, and print what is "
            "found",
        )
        parser.add_argument(
            "--run-dir",
            metavar="DIR",
            type=Path,
            help="the folder for the record of --install (default: a new one below .distdebug/)",
        )
        parser.add_argument("--stacks", action="store_true", help="show all stacks as one tree")
        form = add_form_arguments(parser)
        form.add_argument(
            "--html", metavar="FILE", type=Path, help="write one HTML file, with all stacks"
        )
        parser.add_argument(
            "--exit-code", action="store_true", help="end with the exit code of the finding"
        )

    def run(self, args: argparse.Namespace) -> int:
        from ..inspection.look import Limits

        if args.html is not None:
            from ..reports.html import page

            page.check(args.html)  # before anything takes its time
        limits = Limits(
            still_s=args.still,
            busy_s=2 * args.still,
            moving_s=args.hang_timeout,
        )
        if args.slurm_part is not None:
            return _part(args, limits)
        if args.install is not None:
            return _installed(args)
        if args.watch is None:
            seen = _seen(args, limits)
        else:
            seen = _watched(args, limits, args.watch)
        if not seen.look.ranks or not (args.slurm or any(seen.stacks.values())):
            raise UsageError("no process of the job could be looked at: all have ended meanwhile")
        report = seen.report()
        if args.html is not None:
            with scratch_run(report["command"], report, seen.stack_json()) as directory:
                sys.stdout.write(written_as_html(directory, report, args.html))
            return seen.exit_code if args.exit_code else 0
        sys.stdout.write(rendered(report, args.form, "the look"))
        if args.form == "text" and (args.stacks or args.native):
            sys.stdout.write("\n" + seen.stack_text())
        return seen.exit_code if args.exit_code else 0


def _installed(args: argparse.Namespace) -> int:
    """Put the layer into the ranks, and judge what it records: once, or until it is wrong."""
    from ..inspection.installing import findings_before, install, watched
    from ..record.wording import ranks_text

    if args.slurm is not None:
        raise UsageError("--install reaches the ranks of one host, and --slurm asks several")
    done = install(_job(args), args.run_dir, args.install)
    place = f"the layer is in {ranks_text(done.ranks)}; each was stopped for"
    lines = [
        f"{place} {done.stopped_ms:.0f} ms at most, and ran {done.paused_ms:.1f} ms of it since",
        f"their calls are recorded in {done.run.path}, numbered from now on",
    ]
    if done.behind:
        lines.append(
            f"{ranks_text(done.behind)} has not come to where the others were: its calls count "
            "from there on"
        )
    lines += findings_before(done.past)
    for line in lines:
        print(f"distdebug: {line}", file=sys.stderr)
    report = watched(done.run, args.watch)
    if args.html is None:
        sys.stdout.write(rendered(report, args.form, done.run.path))
    else:
        sys.stdout.write(written_as_html(done.run, report, args.html))
    return int(report["exit_code"]) if args.exit_code else 0


def _watched(args: argparse.Namespace, limits: Limits, every_s: float) -> Inspection:
    """The first inspection that finds something, or the last one of a job that has ended."""
    from ..inspection.judging import at_work

    last = None
    while True:
        try:
            seen = _seen(args, limits)
        except UsageError:
            if last is None:
                raise
            return last  # it has ended
        if seen.findings:
            return seen
        last = seen
        print(f"distdebug: {at_work(seen.look)}", file=sys.stderr)
        time.sleep(every_s)


def _seen(args: argparse.Namespace, limits: Limits) -> Inspection:
    """Looks once at the job that is meant."""
    from ..inspection import slurm
    from ..inspection.inspect import inspect, of_nodes

    if args.slurm is None:
        return inspect(_job(args), limits, args.native, args.dump)
    if args.stacks:
        raise UsageError("--stacks shows this host only: use --json with --slurm, or look there")
    flags = [f"--still={args.still:g}", f"--hang-timeout={args.hang_timeout:g}"]
    flags += ["--native"] * args.native + ["--dump"] * args.dump
    return of_nodes(f"Slurm's job {args.slurm}", slurm.look_at(args.slurm, flags), limits)


def _part(args: argparse.Namespace, limits: Limits) -> int:
    """Prints one node's look at a job of Slurm's, for the command that asks all of them."""
    from ..inspection.inspect import inspect, part
    from ..inspection.processes import find_jobs
    from ..inspection.slurm import written

    jobs = [
        job
        for job in find_jobs()
        if any(one.told.get("SLURM_JOB_ID") == args.slurm_part for one in job.processes)
    ]
    if not jobs:
        raise UsageError("no rank of the job is on this node")
    job = max(jobs, key=lambda one: len(one.processes))
    print(written(part(inspect(job, limits, args.native, args.dump))), flush=True)
    return 0


def _job(args: argparse.Namespace) -> Job:
    from ..inspection.inspect import described
    from ..inspection.processes import find_jobs

    below: Sequence[int] = [args.job] if args.job is not None else args.pid or []
    gone = [pid for pid in below if not proc.exists(pid)]
    if gone:
        raise UsageError(f"there is no process {gone[0]}")
    if args.pid:
        return _of_pids(args.pid)
    jobs = find_jobs(below)
    if not jobs:
        where = f"process {below[0]} and those below it" if below else "this host"
        raise UsageError(
            f"no rank was found among {where}: no Python process of yours has RANK, "
            "OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID in its environment, or has torch "
            "loaded and a Python parent"
        )
    if len(jobs) > 1:
        rows = [f"  {described(job)}" for job in jobs]
        raise UsageError(f"{len(jobs)} jobs run on this host: choose one with --job PID", rows)
    return jobs[0]


def _of_pids(pids: Sequence[int]) -> Job:
    """These processes, and no others. Where they are ranks of one job that was found, that tells
    who they are. A process that is none, and has started those of one job, stands for that job.
    Else they are taken as they are, whoever has started them."""
    from dataclasses import replace

    from ..inspection.processes import find_jobs, job_of

    for job in find_jobs():
        chosen = tuple(one for one in job.processes if one.pid in pids)
        if len(chosen) == len(set(pids)):
            return replace(job, processes=chosen, partial=len(chosen) < len(job.processes))
    below = [job for job in find_jobs(pids) if job.numbered] if len(pids) == 1 else []
    if len(below) == 1:
        return below[0]
    job = job_of(pids)
    if not job.processes:
        raise UsageError(f"process {pids[0]} is not yours to look at")
    return replace(job, partial=True)
