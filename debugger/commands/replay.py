"""`distdebug replay`: makes the recorded calls of a run again, without its program."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..record.wording import by_device
from . import flags, options
from .base import Command, add_run_argument, newest_world, record_of

if TYPE_CHECKING:
    from ..benchmarks.replay.plan import ReplayPlan
    from ..record.snapshot import Rank
    from ..supervisor.run_options import Options

BACKENDS = ("gloo", "tcp", "mpi")
_PROGRAM = Path(__file__).parent.parent / "benchmarks" / "replay" / "program.py"


class ReplayCommand(Command):
    name = "replay"
    epilog = (
        "The ranks run on this host, with zeros on the CPU in place of the run's tensors, watched\n"
        "as any run is: a run that ended in a mismatch or a deadlock ends in it again. A table\n"
        "compares what calls took: how long ranks waited for each other, and how long data moved.\n"
        "\n"
        "examples:\n"
        "  distdebug replay\n"
        "  distdebug replay 20260310-141502-7f3a -n 4 --backend tcp\n"
        "  distdebug replay --fast --json times.json"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        parser.add_argument(
            "-n",
            metavar="N",
            dest="nproc",
            type=flags.count,
            help="ranks: as many as the run had",
        )
        parser.add_argument(
            "--backend", choices=BACKENDS, help="who makes the calls (default: the run's own)"
        )
        parser.add_argument(
            "--fast",
            action="store_true",
            help="leave out the time that the program took between its calls",
        )
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write the table to a new FILE as well"
        )
        options.add(parser)

    def run(self, args: argparse.Namespace) -> int:
        import psutil

        from ..benchmarks.replay import comparison
        from ..benchmarks.replay.plan import ending, planned
        from ..record.runs.artefact import opened
        from ..supervisor.begin import begun
        from ..supervisor.supervisor import Supervisor

        if args.json is not None and (
            args.json.exists() or not args.json.absolute().parent.is_dir()
        ):
            raise UsageError(f"--json {args.json}: name a new file in a folder that exists")
        with opened(args.run) as directory:
            ranks, report, events = record_of(directory, args.run)
            plan = planned(ranks, ending(report, events))
            if args.nproc not in (None, plan.world_size):
                raise UsageError(
                    f"-n {args.nproc}: the run had {plan.world_size} ranks, and its calls are made "
                    f"by as many; write -n {plan.world_size}, or leave it out"
                )
            backend = args.backend or _own_backend(ranks)
            if args.run_dir is not None and args.run_dir.resolve() == directory.path:
                raise UsageError("--run-dir names the recorded run: the replay is one of its own")
            needed, free = plan.tensors_bytes, psutil.virtual_memory().available
            if needed > free:
                raise UsageError(
                    f"the calls of {plan.world_size} ranks have tensors of {needed / 2**30:.1f} "
                    f"GiB, and this host has {free / 2**30:.1f} GiB of memory free: replay it "
                    "where there is more"
                )
            for note in plan.notes:
                print(f"distdebug: {note}", file=sys.stderr)
            recorded = comparison.figures(ranks, comparison.same_names(ranks), plan.kept)
            with _started(args, plan, backend) as asked, begun(asked) as run:
                code = Supervisor(run).run()
            replayed_ranks, _ = newest_world(run.directory)
            replayed = comparison.figures(
                replayed_ranks, comparison.recorded_names(ranks, replayed_ranks)
            )
            print("\n".join(comparison.table(ranks, recorded, replayed)))
            if args.json is not None:
                rows = comparison.as_json(ranks, recorded, replayed)
                value = {"backend": backend, "fast": args.fast, "rows": rows}
                try:
                    with open(args.json, "x", encoding="utf-8") as file:
                        file.write(json.dumps(value, indent=2) + "\n")
                except OSError as error:
                    raise UsageError(f"{args.json} cannot be written: {error.strerror}") from error
        return code


def _own_backend(ranks: Mapping[int, Rank]) -> str:
    """Returns the backend of the run's groups, where this command can have it."""
    used = {group.backend for rank in ranks.values() for group in rank.groups.values()}
    named = {one for text in used for one in by_device(text).values() if one in BACKENDS}
    if len(named) == 1:
        return named.pop()
    raise UsageError(
        f"the run's groups are on {', '.join(sorted(used)) or 'no backend'}: say what is to make "
        f"their calls, with --backend {'|'.join(BACKENDS)}"
    )


@contextlib.contextmanager
def _started(args: argparse.Namespace, plan: ReplayPlan, backend: str) -> Iterator[Options]:
    """The run that is to be supervised. What it reads lies in a folder that is gone afterwards."""
    from ..launch.mpi_launcher import mpi_job
    from ..launch.torchrun_flags import free_port_arguments, split_command_line
    from ..supervisor.run_options import Options

    with tempfile.TemporaryDirectory(
        prefix="distdebug-replay-", ignore_cleanup_errors=True
    ) as name:
        for rank, its in plan.ranks.items():
            (Path(name) / f"{rank}.json").write_text(json.dumps(its), encoding="utf-8")
        pace = "fast" if args.fast else "recorded"
        size = plan.world_size
        line = ["-n", str(size), str(_PROGRAM), name, backend, pace]
        request = split_command_line(line, argparse.ArgumentParser())
        shown = ["distdebug", "replay", *([args.run] if args.run else []), "-n", str(size)]
        shown += ["--backend", backend, *(["--fast"] if args.fast else [])]
        common = options.common(args, request.command_line, size)
        if backend == "mpi":
            with mpi_job(request, size) as job:
                yield Options(
                    command=job.command,
                    environment=job.environment,
                    scratch=job.scratch,
                    shown_command=shown,
                    **common,
                )
            return
        with free_port_arguments(request) as port:
            yield Options(
                command=[
                    *(request.python.executable, "-m", "torch.distributed.run"),
                    *(*port, *request.command_line),
                ],
                launcher="torchrun",
                environment={"DISTDEBUG_ONE_HOST": "" if args.netns else "1"},
                shown_command=shown,
                **common,
            )
