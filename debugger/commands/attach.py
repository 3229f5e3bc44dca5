"""`distdebug attach`: the prompt of a rank at a breakpoint, with line editing and history."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UsageError
from ..record.requests.breakpoints import Stop, connect, stops
from ..record.runs.job_view import node_of_view
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import clean
from ..supervisor.terminal import show_prompt
from . import flags
from .base import Command, add_run_argument


class AttachCommand(Command):
    name = "attach"
    epilog = (
        "The prompt is pdb's, in the rank. `continue` lets the rank go on to its next breakpoint;\n"
        "`quit`, Ctrl-D or closing the terminal let it go on without stopping again. While the\n"
        "rank runs, Ctrl-C leaves it to itself in the same way.\n"
        "\n"
        "examples:\n"
        "  distdebug attach --rank 2\n"
        "  distdebug attach .distdebug/20260310-141502-7f3a --rank 2"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser, packed=False)
        parser.add_argument(
            "--rank",
            type=flags.rank,
            metavar="R",
            help="which rank (default: the only one at a breakpoint)",
        )
        parser.add_argument(
            "--once",
            action="store_true",
            help="come back at `continue`; the rank's further breakpoints stay",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.run is not None and Path(args.run).is_file():
            raise UsageError(
                f"{clean(args.run)} is a file: a run that was packed has ended, and none of its "
                "ranks is at a breakpoint; see `distdebug report`"
            )
        directory = RunDirectory.open(args.run).path
        # In a view of all nodes stands a link to the prompts that are reached from this one.
        directory = node_of_view(directory) or directory
        stop = _chosen(directory, args.rank)
        if stop.address:
            raise UsageError(stop.notice(""))
        try:
            connection = connect(directory, stop)
        except OSError as error:
            raise UsageError(
                f"{stop.who} cannot be reached: {(error.strerror or str(error)).lower()}; "
                "it may have gone on"
            ) from None
        show_prompt(connection, stop, directory, once=args.once)
        return 0


def _chosen(directory: Path, rank: int | None) -> Stop:
    found = stops(directory)
    there = ", ".join(stop.who for stop in found) or "no rank"
    if rank is None:
        if len(found) > 1:
            raise UsageError(f"{there} are at breakpoints; say which with --rank")
        if not found:
            raise UsageError(f"no rank of {directory} is at a breakpoint on this host")
        return found[0]
    for stop in found:
        if stop.rank == rank:
            return stop
    verb = "are" if len(found) > 1 else "is"
    raise UsageError(f"rank {rank} is not at a breakpoint of {directory}; {there} {verb}")
