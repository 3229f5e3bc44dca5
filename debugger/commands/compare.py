"""`distdebug compare`: where two runs of a program differ first, or a run and a plan of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..record.safe_text import clean
from .base import Command, newest_world
from .flags import add_link_flags, link_of

if TYPE_CHECKING:
    from ..plan.compare.document import Side
    from ..plan.compare.values import ValuesComparison
    from ..plan.compare.values_document import ValuesSide
    from ..plan.traffic import RankCalls
    from ..record.values import RankValues

EXIT_DIFFERENT = 1
_MOST_FAULTS = 3
IGNORABLE = {"lines": "line", "sizes": "shape", "steps": "steps", "async": "async"}


class CompareCommand(Command):
    name = "compare"
    epilog = (
        "Two runs of as many ranks are compared rank by rank, others by the places that ranks\n"
        "have in their groups. Ends with 0 where they are equal, 1 where they differ.\n"
        "\n"
        "With --values it is not calls that are compared, but what they and the training came to:\n"
        "the first step, quantity, name and rank at which two runs part by more than rounding.\n"
        "Gradients and parameters of N ranks may be compared with those of one, in data or tensor\n"
        "parallel. Ends with 0, 1, or 2 where nothing can be compared: fit for `git bisect run`.\n"
        "\n"
        "examples:\n"
        "  distdebug compare good-run bad-run\n"
        "  distdebug compare run-of-8 plan-of-1024 --ignore sizes,steps\n"
        "  distdebug compare good-run bad-run --json | jq .first\n"
        "  distdebug compare --values run-on-1-rank run-on-4 -o difference.svg"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        what = "a run directory, its name below .distdebug/, or a file that --ci has packed"
        parser.add_argument("a", metavar="RUN", help=what)
        parser.add_argument("b", metavar="RUN", help="the other one")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--ignore",
            type=_ignored,
            default=frozenset(),
            metavar="WHAT",
            help=f"differences that are none: some of {','.join(IGNORABLE)}",
        )
        group = parser.add_argument_group("values")
        group.add_argument(
            "--values", action="store_true", help="compare what `run --values` has recorded"
        )
        group.add_argument(
            "--shift",
            type=int,
            default=0,
            metavar="K",
            help="compare step S of the second run with step S + K of the first",
        )
        group.add_argument(
            "--rtol",
            type=tolerance,
            default=0.0,
            metavar="R",
            help="take relative differences up to R for rounding, where the bound is less",
        )
        group.add_argument(
            "-o",
            dest="plot",
            type=Path,
            metavar="FILE.svg",
            help="write a plot of the relative difference per step",
        )
        add_link_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.values:
            return _values(args)
        for flag, given in (("--shift", args.shift), ("--rtol", args.rtol), ("-o", args.plot)):
            if given:
                raise UsageError(f"{flag} is of --values, which was not given")
        from ..plan.compare import document
        from ..plan.compare.comparison import compare

        link = link_of(args)
        (side, ranks), (other_side, other_ranks) = read(args.a), read(args.b)
        sides = (side, other_side)
        found = compare(ranks, other_ranks, args.ignore, link)
        if args.json:
            print(json.dumps(document.as_json(found, sides), indent=2))
        else:
            print("\n".join(document.lines(found, sides)))
        return 0 if found.equal else EXIT_DIFFERENT


def _values(args: argparse.Namespace) -> int:
    from ..plan.compare import values_document as document

    (side, ranks), (other_side, other_ranks) = recorded_values(args.a), recorded_values(args.b)
    sides = (side, other_side)
    found = compared(ranks, other_ranks, args.shift, args.rtol)
    if args.plot is not None:
        try:
            args.plot.write_text(document.plot(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{args.plot} cannot be written: {error.strerror}") from None
    if args.json:
        print(json.dumps(document.as_json(found, sides), indent=2))
    else:
        print("\n".join(document.lines(found, sides)))
    return EXIT_DIFFERENT if found.first else 0


def compared(
    one: Mapping[int, RankValues], other: Mapping[int, RankValues], shift: int, rtol: float
) -> ValuesComparison:
    """Compares the values of two runs. Raises UsageError where they have no step in common."""
    from ..plan.compare.values import NoCommonStepError, compare_values

    try:
        return compare_values(one, other, shift, rtol)
    except NoCommonStepError as error:
        raise UsageError(str(error)) from None


def recorded_values(run: str | None) -> tuple[ValuesSide, dict[int, RankValues]]:
    """The values of all ranks of a run. Raises UsageError where there are none."""
    from ..plan.compare.values_document import ValuesSide
    from ..record.runs.artefact import opened
    from ..record.values import read_values

    with opened(run) as directory:
        place = clean(run or str(directory.path))
        ranks, faults = read_values(directory.ranks)
        if not ranks:
            raise UsageError(
                f"{place} has no values: record them by `distdebug run --values ...`, or "
                f"`distdebug exec --values -- ...`. {'; '.join(faults[:_MOST_FAULTS])}".rstrip(" .")
                + "."
            )
        return ValuesSide.of(place, ranks), ranks


def tolerance(text: str) -> float:
    """Reads a relative difference. Raises ArgumentTypeError."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f"must be a relative difference from 0 on, not {text!r}")
    return found


def read(run: str | None) -> tuple[Side, Sequence[RankCalls]]:
    """The calls of all ranks of a run, or of a plan. Raises UsageError where there are none."""
    from ..plan import traffic
    from ..plan.compare.document import Side
    from ..plan.program import read_programs
    from ..record.runs.artefact import opened

    with opened(run) as directory:
        place = clean(run or str(directory.path))
        programs = read_programs(directory.path)
        if programs:
            return Side(place, is_plan=True), traffic.of_programs(programs)
        ranks, faults = newest_world(directory)
        if not ranks:
            more = len(faults) - _MOST_FAULTS
            faults[_MOST_FAULTS:] = [f"and {more} more"] if more > 0 else []
            raise UsageError(f"{place} has no rank's record. {'; '.join(faults)}".rstrip())
        return Side(place), traffic.of_ranks(ranks.values())


def _ignored(text: str) -> frozenset[str]:
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in IGNORABLE:
            raise UsageError(f"--ignore takes some of {','.join(IGNORABLE)}, not {word!r}")
    return frozenset(IGNORABLE[word] for word in words)
