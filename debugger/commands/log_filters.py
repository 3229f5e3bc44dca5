"""The filters of `distdebug logs`: ranks, levels, groups, ops and times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..errors import UsageError
from ..record.limits import MOST_RANKS
from ..record.log_file import at_least
from ..record.ops import OP_CODES
from ..record.runs.log_reader import Entry

PRINTED_AS = "info"
"""The level of a line that a rank has printed."""
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_CLOCK = re.compile(r"(\d\d?):(\d\d):(\d\d)(\.\d{1,9})?")
_SECONDS = re.compile(r"\d{1,9}(\.\d*)?|\.\d+")


@dataclass(slots=True)
class Filter:
    """The conditions of a line to be shown; None: anything. Times are Unix nanoseconds."""

    level: str | None = None
    group: str | None = None
    op: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None

    def __post_init__(self) -> None:
        if self.op is not None and self.op not in OP_CODES:
            raise UsageError(f"--op takes an op such as all_reduce, not {self.op!r}")

    @property
    def records_only(self) -> bool:
        """Whether it asks for what only records have."""
        graver = self.level is not None and not at_least(PRINTED_AS, self.level)
        return graver or (self.group, self.op) != (None, None)

    def takes(self, entry: Entry) -> bool:
        """Whether the entry is to be shown."""
        fields = entry.fields
        level = fields.get("level") if fields else PRINTED_AS
        if self.level is not None and not at_least(level, self.level):
            return False
        if self.group is not None and fields.get("group") != self.group:
            return False
        if self.op is not None and fields.get("op") != self.op:
            return False
        if self.since_ns is not None and entry.time_ns < self.since_ns:
            return False
        return self.until_ns is None or entry.time_ns <= self.until_ns


def parse_time(flag: str, text: str | None, start_ns: int) -> int | None:
    """`12.5`, seconds since the start, or `14:15:02`, of the two or three such clock times around
    the start the nearest to it. Raises UsageError."""
    if text is None:
        return None
    if _SECONDS.fullmatch(text):
        return start_ns + int(float(text) * 1e9)
    clock = _CLOCK.fullmatch(text)
    if clock is not None and int(clock[1]) < 24 and int(clock[2]) < 60 and int(clock[3]) < 60:
        start = datetime.fromtimestamp(start_ns / 1e9).astimezone()
        hour, minute, second = map(int, clock.groups()[:3])
        day = start.replace(hour=hour, minute=minute, second=second, microsecond=0)
        near = min(
            (day + timedelta(days=days) for days in (-1, 0, 1)), key=lambda one: abs(one - start)
        )
        return int(near.timestamp()) * 10**9 + int(float(clock[4] or 0) * 1e9)
    raise UsageError(
        f"{flag} takes seconds since the start of the run, such as 12.5, "
        f"or a clock time, such as 14:15:02, not {text!r}"
    )


def parse_ranks(text: str) -> frozenset[int]:
    """`0,2-3`. Raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if last < first or last - first > MOST_RANKS:
            raise UsageError(f"--rank takes ranks such as 2 or 0,4-7, not {text!r}")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)
