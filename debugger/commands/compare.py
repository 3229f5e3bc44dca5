"""`distdebug compare`: where two runs of a program differ first, or a run and a plan of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..record.safe_text import clean
from .base import Command, newest_world
from .flags import add_link_flags, link_of

if TYPE_CHECKING:
    from ..plan.compare.document import Side
    from ..plan.traffic import RankCalls

EXIT_DIFFERENT = 1
_MOST_FAULTS = 3
IGNORABLE = {"lines": "line", "sizes": "shape", "steps": "steps", "async": "async"}


class CompareCommand(Command):
    name = "compare"
    epilog = (
        "Two runs of as many ranks are compared rank by rank, others by the places that ranks\n"
        "have in their groups. Ends with 0 where they are equal, 1 where they differ.\n"
        "\n"
        "examples:\n"
        "  distdebug compare good-run bad-run\n"
        "  distdebug compare run-of-8 plan-of-1024 --ignore sizes,steps\n"
        "  distdebug compare good-run bad-run --json | jq .first"
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
        add_link_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
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
