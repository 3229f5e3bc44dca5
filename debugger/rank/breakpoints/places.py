"""The places at which `--break` stops, as a rank looks them up: lines of files, and calls by op and
number."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from ...record.ops import OP_CODES
from ...record.requests import breakpoints
from ...record.requests.breakpoints import BreakAt

BREAK = "DISTDEBUG_BREAK"
"""The places, one a line, with absolute names of files."""


class BreakPlaces:
    """Places as they were given, by what they are about."""

    def __init__(self, places: Sequence[BreakAt]) -> None:
        self._calls = [one for one in places if one.op]
        self._ranks: dict[tuple[str, int], list[int | None]] = {}
        for one in places:
            if one.file:
                key = (breakpoints.canonical_file(one.file), one.line)
                self._ranks.setdefault(key, []).append(one.rank)

    @classmethod
    def from_environment(cls) -> BreakPlaces:
        """Reads what the command line said. What cannot be read was not written by it."""
        found = []
        for text in filter(None, os.environ.get(BREAK, "").split("\n")):
            with contextlib.suppress(ValueError):
                found.append(breakpoints.parse_break(text))
        return cls(found)

    def lines_on(self, rank: int | None) -> list[tuple[str, int]]:
        """(file, line) at which this rank may stop; all of them while it is not known."""
        return [
            place
            for place, ranks in self._ranks.items()
            if rank is None or None in ranks or rank in ranks
        ]

    def on_rank(self, file: str, line: int, rank: int | None) -> bool:
        """Whether to stop at this line on this rank, if pdb has a breakpoint there: its user may
        have set it."""
        ranks = self._ranks.get((file, line), [None])
        return None in ranks or rank in ranks

    def calls_on(self, rank: int) -> frozenset[tuple[int, int]]:
        """(code of the op, sequence number) of the calls before which this rank stops."""
        return frozenset(
            (OP_CODES[one.op], one.seq) for one in self._calls if one.rank in (None, rank)
        )
