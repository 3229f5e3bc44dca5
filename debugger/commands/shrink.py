"""`distdebug shrink`: writes a small program that fails as a recorded run did."""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

from ..errors import UsageError
from .base import Command, add_run_argument, record_of

EXIT_FAILED = 1


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
        from ..benchmarks.shrink.confirming import confirmed
        from ..benchmarks.shrink.recorded import aims, programs
        from ..benchmarks.shrink.reducing import Reduced, Reducer
        from ..benchmarks.shrink.writing import FIRST, NotWritten
        from ..diagnosis.facts.blocking import Model
        from ..record.log_file import INFO
        from ..record.runs.artefact import opened
        from ..record.runs.run_directory import read_object
        from ..record.safe_files import replacing
        from ..reports.stored import check_replaceable

        flag, foreign = "--output", "was not made by shrink"
        check_replaceable(args.output, flag, FIRST, fails="replaced", foreign=foreign)
        began_s = time.monotonic()
        with opened(args.run) as directory:
            ranks, report, events = record_of(directory, args.run)
            if not report:
                raise UsageError(f"{args.run or directory.path} has no report: has it ended?")
            for aim, model in itertools.product(
                aims(report, events), (Model(), Model(strict=True))
            ):
                first = Reduced(programs(ranks, aim), aim.culprits)
                reducer = Reducer(aim, model, SHRINK_S)
                if reducer.begins_with(first):
                    break
            else:
                said = f"{aim.said_of(aim.culprits)}: the calls on record alone do not lead there"
                print(f"{said}, as a simulation of them shows: not made smaller")
                return EXIT_FAILED
            steps = [first, *reducer.steps(first)]
            level = str(read_object(directory.run_json).get("level", INFO))
        try:
            small, source = confirmed(steps, aim, level, args.output.name)
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
