"""Draws a rank's recent calls: one line a call, with a bar that shows when it began and ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len

from ...record.layout import CallState
from ...record.snapshot import Call, GroupKey
from ...record.wording import call_text, site_text
from ..text import Line, apart, called_at, duration, fit, safe

MOST_NAME = 12

MARKS = {
    CallState.ISSUED: "…",
    CallState.STARTED: "…",
    CallState.COMPLETED: " ",
    CallState.FAILED: "!",
}


def timeline_lines(
    calls: Sequence[Call],
    now_ns: int,
    width: int,
    ended: bool,
    groups: Mapping[GroupKey, str] | None = None,
) -> list[Line]:
    """The calls, newest first. The bars share one scale, from the first call's start to the last
    moment known. `ended`: an open call never came to its end. `groups`: what to call the group of
    each call, where there is more than one."""
    if not calls:
        return [(("no calls on record", "dim"),)]
    bar = max(10, min(50, (width - 60) // 2))
    from_ns = min(call.issued_ns for call in calls)
    until_ns = max(max(call.completed_ns or call.issued_ns for call in calls), from_ns + 1)
    open_calls = any(not call.completed_ns for call in calls)
    if open_calls and not ended:
        until_ns = max(until_ns, now_ns)
    groups = groups or {}
    short = dict(
        zip(groups, apart([safe(name) for name in groups.values()], MOST_NAME), strict=True)
    )
    names = [short.get(call.group, "") for call in calls]
    column = max(map(cell_len, names))
    width -= column + 1 if column else 0
    rows = [_line(call, from_ns, until_ns, bar, width, ended) for call in calls]
    if column:
        rows = [
            ((f"{fit(name, column)} ", "dim"), *row) for name, row in zip(names, rows, strict=True)
        ]
    return rows[::-1]


def _line(call: Call, from_ns: int, until_ns: int, bar: int, width: int, ended: bool) -> Line:
    done = call.completed_ns
    failed = call.state is CallState.FAILED
    tone = "bad" if failed or (ended and not done) else "busy" if not done else ""
    took = duration((done or until_ns) - call.issued_ns) if done or not ended else "no end"
    if done == call.issued_ns:
        took = ""  # read from a dump, which tells that it ended and not when
    number = f"#{call.seq}"
    room = width - bar - 22
    site = safe(site_text(call.site)) if call.site else ""
    said = called_at(safe(call_text(call)), site, max(10, room) + 2)[2:]
    drawn = _bar(call.issued_ns, done or until_ns, from_ns, until_ns, bar)
    return (
        (fit(number, 7), "dim"),
        (f"{MARKS[call.state]} ", tone),
        (fit(took, 8, right=True), tone),
        (" ", ""),
        (drawn, tone or "good"),
        (" ", ""),
        (fit(said, max(10, room)), tone),
    )


def _bar(start_ns: int, end_ns: int, from_ns: int, until_ns: int, cells: int) -> str:
    span = until_ns - from_ns
    first = min(cells - 1, (start_ns - from_ns) * cells // span)
    last = min(cells, max(first + 1, -(-(end_ns - from_ns) * cells // span)))
    return "·" * first + "█" * (last - first) + "·" * (cells - last)
