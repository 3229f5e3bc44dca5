"""`distdebug export`: writes what was recorded of a run in a form that other tools read."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..record.wording import counted
from .base import Command, add_run_argument, newest_world

if TYPE_CHECKING:
    from ..record.runs.run_directory import RunDirectory
    from ..record.snapshot import Rank


class ExportCommand(Command):
    name = "export"
    epilog = (
        "Dumps are one a rank, which torch's own analyser loads. A trace is JSON that Perfetto\n"
        "opens; with --kineto one a rank, as torch's profiler writes them.\n"
        "\n"
        "examples:\n"
        "  distdebug export --trace trace.json\n"
        "  distdebug export --prom run.prom\n"
        "  distdebug export --fr dumps\n"
        "  torchfrtrace dumps --prefix rank_\n"
        "  distdebug export --fr dumps 20260310-141502-7f3a"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        form = parser.add_mutually_exclusive_group(required=True)
        form.add_argument(
            "--fr",
            metavar="DIR",
            type=Path,
            help="dumps of torch's flight recorder, into a new or empty folder",
        )
        form.add_argument(
            "--trace", metavar="FILE", type=Path, help="a trace of all ranks, a new file"
        )
        form.add_argument(
            "--prom",
            metavar="FILE",
            type=Path,
            help="a Prometheus textfile, as `run --prom` has it",
        )
        form.add_argument(
            "--kineto",
            metavar="DIR",
            type=Path,
            help="a trace for each rank, into a new or empty folder",
        )

    def run(self, args: argparse.Namespace) -> int:
        from ..record.runs.artefact import opened

        with opened(args.run) as directory:
            ranks, faults = newest_world(directory)
            if not ranks:
                said = "; ".join(faults)
                raise UsageError(f"{args.run or directory.path} has no rank's record. {said}")
            print(_metrics(args.prom, directory, ranks) if args.prom else _exported(args, ranks))
            for fault in faults:
                print(f"left out: {fault}")
        return 0


def _metrics(path: Path, directory: RunDirectory, ranks: Mapping[int, Rank]) -> str:
    """Writes what the record has of the calls, and what the report has found."""
    from ..record import steady_clock
    from ..record.requests.supervision import is_live
    from ..reports import prometheus, stored

    prometheus.check(path)
    report = stored.load(directory.report_json)
    lives = report is None and is_live(directory.path)
    totals = prometheus.CallTotals()
    totals.take(ranks.values())
    state = prometheus.ExportedState(
        ranks=ranks,
        world_size=max(rank.world_size for rank in ranks.values()),
        findings=prometheus.found_in(report or {}),
        now_ns=steady_clock.now_ns(),
        run=directory.path.name,
        outcome=str(report["outcome"]) if report else "running" if lives else "unknown",
        exit_code=int(report["exit_code"]) if report else None,
        lives=lives,
    )
    try:
        prometheus.write(path, prometheus.render(totals, state))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    calls = sum(one.calls for one in totals.ops.values())
    return f"{counted(calls, 'call')} of {counted(len(ranks), 'rank')} in {path}"


def _exported(args: argparse.Namespace, ranks: Mapping[int, Rank]) -> str:
    """Write what was asked for; says what it is and what to do with it."""
    from ..foreign import export

    path: Path = args.fr or args.trace or args.kineto
    try:
        if args.trace is None and path.exists() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty: name a new folder")
        if args.fr is not None:
            count = export.write_dumps(ranks, path)
            return f"{count} dumps in {path}: torchfrtrace {path} --prefix {export.PREFIX}"
        if args.kineto is not None:
            return f"{export.write_each(ranks, path)} traces in {path}"
        count = export.write_merged(ranks, path)
        return f"{counted(count, 'call')} of {counted(len(ranks), 'rank')} in {path}: open it in https://ui.perfetto.dev"
    except FileExistsError as error:
        raise UsageError(f"{path} is there already: name a new file") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
