"""`distdebug shrink`: writes a small program that fails as a recorded run did."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path

from ..errors import UsageError
from .base import Command, add_run_argument, newest_world

EXIT_FAILED = 1
_MOST_EVENTS_BYTES = 1 << 22


class ShrinkCommand(Command):
    name = "shrink"
    epilog = (
        "For bug reports: plain torch on gloo, for torchrun, with as few ranks and calls as have\n"
        "the same verdict. Nothing of the run's own program is needed. Exit code 0: written, and\n"
        "it ended alike under `distdebug run`; 1: it did not, or is longer than 60 lines.\n"
        "\n"
        "examples:\n"
        "  distdebug shrink\n"
        "  distdebug shrink 20260310-141502-7f3a -o small.py"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            default=Path("small.py"),
            metavar="FILE",
            help="the program (default: small.py)",
        )

    def run(self, args: argparse.Namespace) -> int:
        from ..benchmarks.limits import SHRINK_S
        from ..benchmarks.shrink import confirming, recorded
        from ..benchmarks.shrink.reducing import Reduced, Reducer
        from ..benchmarks.shrink.writing import FIRST, NotWritten
        from ..diagnosis.facts.blocking import Model
        from ..record.log_file import INFO
        from ..record.runs.artefact import opened
        from ..record.safe_files import object_of, read_regular, replacing
        from ..reports.stored import check_replaceable, load

        check_replaceable(
            args.output,
            "--output",
            f'"""{FIRST}',
            fails="replaced",
            foreign="was not made by shrink",
        )
        began_s = time.monotonic()
        with opened(args.run) as directory:
            ranks, faults = newest_world(directory)
            report = load(directory.report_json)
            if faults or not ranks or report is None:
                none = f"{args.run or directory.path} has no report, or no rank's record"
                raise UsageError(faults[0] if faults else none)
            events, about = b"", b"{}"
            with contextlib.suppress(OSError):  # without it nothing tells when it ended
                events = read_regular(directory.events, _MOST_EVENTS_BYTES)
                about = read_regular(directory.run_json, _MOST_EVENTS_BYTES)
            aim = recorded.Aim.of(report, [*map(object_of, events.splitlines())])
            first = Reduced(recorded.programs(ranks, aim), aim.culprits)
            for model in (Model(), Model(strict=True)):
                reducer = Reducer(aim, model, SHRINK_S)
                if reducer.begins_with(first):
                    break
            else:
                print(
                    f"{aim.kind.name}: not made smaller: the calls on record, made again in a "
                    "simulation, do not end so"
                )
                return EXIT_FAILED
            steps = [first, *reducer.steps(first)]
        level = str(object_of(about).get("level", INFO))
        try:
            small, source = confirming.confirmed(steps, aim, level, args.output.name)
        except NotWritten as error:
            print(f"from {first} to {steps[-1]} in a simulation, and no further: {error}")
            return EXIT_FAILED
        with replacing(args.output) as file:
            file.write(source.encode())
        print(
            f"from {first} to {small} in {time.monotonic() - began_s:.0f} s; same verdict under "
            f"distdebug run: {aim.said_of(small.culprits)}"
        )
        return 0
