"""Draws what each rank did over the last 30 seconds: a line a rank, all on one time axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..picture import Letter, RankRow, Timeline, Track
from ..text import Line, Piece, clip, fit

LABEL = 6
SHARE = 13
LEAST_CELLS = 20
LOOKS: dict[Letter, tuple[str, str, str]] = {
    Letter.COMPUTING: ("─", "good", "computing"),
    Letter.BACKGROUND: ("═", "good", "computing, with a call in the background"),
    Letter.CALLING: ("█", "busy", "in a call"),
    Letter.WAITING: ("▒", "warn", "waiting for others"),
    Letter.PAUSED: ("B", "warn", "breakpoint"),
    Letter.NOTHING: (" ", "", ""),
}
"""By doing: the sign, its tone, its meaning."""
_BY_LETTER = {doing.value: (sign, tone) for doing, (sign, tone, _) in LOOKS.items()}
_FIRST = "".join(
    doing.value
    for doing in (
        Letter.WAITING,
        Letter.PAUSED,
        Letter.CALLING,
        Letter.BACKGROUND,
        Letter.COMPUTING,
        Letter.NOTHING,
    )
)
"""The order of doings that took equally long: the first of these is shown."""


def cells(width: int) -> int:
    """Returns how many cells a strip has on a screen of that width."""
    return max(LEAST_CELLS, width - LABEL - SHARE)


def strip_lines(
    timeline: Timeline, rows: Sequence[RankRow], width: int, chosen: int | None
) -> list[Line]:
    """A line for each of these ranks: its strip, and the share of its time that it waited."""
    return [
        _line(timeline.tracks.get(row.rank), row, cells(width), row.rank == chosen, width)
        for row in rows
    ]


def _line(track: Track | None, row: RankRow, count: int, chosen: bool, width: int) -> Line:
    name = f"▸{row.rank}" if row.culprit else f" {row.rank}"
    tone = "mark" if row.culprit else "cursor" if chosen else ""
    label: list[Piece] = [(fit(name, LABEL - 1), tone), (" ", "")]
    if track is None:
        return (*label, ("nothing on record", "dim"))
    share = f" {track.waits:4.0%} waiting" if track.waits >= 0.005 else ""
    return clip((*label, *_pieces(track.letters, count), (share, "dim")), width)


def _pieces(letters: str, count: int) -> list[Piece]:
    """The strip in so many cells; each shows what prevails in it, a wait before what is as long."""
    found: list[Piece] = []
    size = len(letters)
    for cell in range(count):
        part = letters[
            cell * size // count : max(cell * size // count + 1, (cell + 1) * size // count)
        ]
        sign, tone = _BY_LETTER[_prevails(part)]
        if found and found[-1][1] == tone:
            found[-1] = (found[-1][0] + sign, tone)
        else:
            found.append((sign, tone))
    return found


def _prevails(part: str) -> str:
    if len(part) == 1 or part == part[0] * len(part):
        return part[0]
    return max(_FIRST, key=part.count)


def axis(timeline: Timeline, width: int, over: bool = False) -> Line:
    """The time axis below the strips: how long before now, or before the end of a run that is
    `over`."""
    count = cells(width)
    text = [" "] * count
    span_s = timeline.span_ns // 10**9
    ticks = 4 if span_s == 1 else 5 if span_s % 3 else 3
    for at in range(ticks):
        label = f"│-{timeline.span_ns * (ticks - at) / ticks / 1e9:g} s"
        start = count * at // ticks
        text[start : start + len(label)] = label
    text[count - 4 :] = " end" if over else " now"
    return ((" " * LABEL, ""), ("".join(text), "dim"))


def legend(width: int, shown: Iterable[Track] = ()) -> Line:
    """Returns a line with the meanings of the signs that are there."""
    letters = set().union(*(track.letters for track in shown))
    pieces: list[Piece] = []
    for doing, (sign, tone, words) in LOOKS.items():
        if words and doing.value in letters:
            pieces += [(sign * 2, tone), (f" {words}   ", "dim")]
    return clip(tuple(pieces), width)
