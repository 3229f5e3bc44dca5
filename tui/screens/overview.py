"""The overview: a row per rank, or a heat map of very many with the odd ones below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ..picture import Letter, Picture, RankRow, Source, Timeline, Track
from ..rows import MOST_ROWS
from ..text import Line, Piece, add_piece, clip, fit, line
from ..widgets import heat
from .base import Body, Key, View, moved, no_rank
from .columns import COLUMNS, SORTS, RankTable

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
_FIRST = "".join(one.value for one in (Letter.WAITING, *[*LOOKS][-2::-1], Letter.NOTHING))
"""The order of doings that took equally long, a wait before all others: the first is shown."""


def cells(width: int) -> int:
    """Returns how many cells a strip has on a screen of that width."""
    return max(LEAST_CELLS, width - LABEL - SHARE)


def strip_lines(
    timeline: Timeline, rows: Sequence[RankRow], width: int, chosen: int | None
) -> list[Line]:
    """A line for each of these ranks: its strip, and the share of its time that it waited."""
    count, lines = cells(width), []
    for row in rows:
        track = timeline.tracks.get(row.rank)
        name = f"▸{row.rank}" if row.culprit else f" {row.rank}"
        tone = "mark" if row.culprit else "cursor" if row.rank == chosen else ""
        label: list[Piece] = [(fit(name, LABEL - 1), tone), (" ", "")]
        if track is None:
            lines.append((*label, ("nothing on record", "dim")))
            continue
        strip: list[Piece] = []
        size = len(track.letters)
        for cell in range(count):  # each shows what prevails in it, a wait before what is as long
            start = cell * size // count
            part = track.letters[start : max(start + 1, (cell + 1) * size // count)]
            same = part == part[0] * len(part)
            add_piece(strip, *_BY_LETTER[part[0] if same else max(_FIRST, key=part.count)])
        share = f" {track.waits:4.0%} waiting" if track.waits >= 0.005 else ""
        lines.append(clip((*label, *strip, (share, "dim")), width))
    return lines


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


HEADER = 6
"""Lines of the header and the foot, where nothing was found."""
AROUND = 4
"""The rows' head, the line above the strips, what their signs mean, and their axis."""


class Overview(View):
    name = "overview"
    key = "o"
    title = "Overview"
    explained = (
        "A row per rank: what it does, the call it is in or made last, for how long, and by how "
        "many collectives it is behind; below, where there is room for it (else with t), what each "
        "did over the last 30 s, on one time axis: who computes while the others wait is whom they "
        "wait for. From 65 ranks on a map, one letter a rank."
    )
    keys: ClassVar = (
        Key(
            "greater_than_sign",
            ">",
            "sort",
            "sort by the next column: ↓ the largest first, ↑ the smallest",
        ),
        Key("v", "v", "reverse", "turn the order round"),
        Key(
            "t",
            "t",
            "strips",
            "of up to 64 ranks what each did over the last 30 s, in place of the rows",
        ),
    )

    words: ClassVar = {one.title: one.explained for one in COLUMNS if one.explained}
    sort = "rank"
    reverse = False
    strips = False
    """Whether they stand in place of the rows."""
    _row = 0

    def body(self, picture: Picture, width: int, height: int) -> Body:
        if not picture.states:
            return Body(lines=[line((no_rank(picture), "dim"))])
        if len(picture.states) > MOST_ROWS:
            return self._map(picture, width, height)
        rows = self.rows(picture)
        table = RankTable(picture, width)
        head = table.head(self.sort, self._arrow)
        if not rows:
            return Body(top=[head], lines=[self.nothing_matches()])
        at = self._row = self._at(picture, rows)
        timeline = picture.timeline
        if self.strips and timeline is None:
            why = "reading ..."
            if picture.source is Source.DUMPS:
                why = "dumps do not say when calls ended: what each rank did is not known"
            return Body(lines=[line((why, "dim"))])
        lines, below = [table.row(row) for row in rows], []
        # Both, where all rows and all strips fit on the screen.
        room = self.room or height - HEADER
        if timeline is not None and (self.strips or 2 * len(rows) + AROUND <= room):
            meanings = legend(width, timeline.tracks.values())
            ends = axis(timeline, width, picture.is_over)
            if self.strips:
                strips = strip_lines(timeline, rows, width, None)
                return Body(top=[meanings], lines=strips, below=[ends], cursor=at)
            below = [meanings, *strip_lines(timeline, rows, width, self.chosen.rank), ends]
        return Body(top=[head], lines=lines, below=below, cursor=at)

    def told(self) -> str:
        plain_order = self.sort == "rank" and not self.reverse
        return "" if plain_order else f"sorted by {self.sort}{self._arrow}"

    @property
    def _arrow(self) -> str:
        """Up: the smallest first."""
        first = SORTS[self.sort].first
        return {"↑": "↓", "↓": "↑"}[first] if self.reverse else first

    def rows(self, picture: Picture) -> list[RankRow]:
        """The rows in the chosen order, those that the filter lets through."""
        order = SORTS[self.sort].order
        rows = sorted(picture.rows.values(), key=lambda row: order(row, picture.now_ns))
        if self.reverse:
            rows.reverse()
        wanted = self.filter.lower()
        if not wanted:
            return rows
        found = []
        for row in rows:
            words = (f"rank {row.rank}", row.state.value, row.words, row.call, row.group)
            if wanted in " ".join((*words, row.site, row.host)).lower():
                found.append(row)
        return found

    def _at(self, picture: Picture, rows: list[RankRow]) -> int:
        """The cursor's row. It stays with the rank when that is followed, else where it is."""
        ranks: list[int | None] = [row.rank for row in rows]
        if not self.chosen.touched and self.chosen.settle(picture) in ranks:
            return ranks.index(self.chosen.rank)
        if self.chosen.rank in ranks and (self.chosen.follow or self.sort == "rank"):
            self._row = ranks.index(self.chosen.rank)
        self._row = max(0, min(self._row, len(ranks) - 1))
        self.chosen.rank = ranks[self._row]
        return self._row

    def _map(self, picture: Picture, width: int, height: int) -> Body:
        chosen = self.chosen.settle(picture)
        assert chosen is not None  # there are ranks
        position = list(picture.states).index(chosen)
        lines = heat.heat_lines(picture.states, width, picture.culprits, chosen)
        selected = picture.rows.get(chosen)
        odd = [row for row in self.rows(picture) if row is not selected or row.culprit]
        table = RankTable(picture, width)
        below: list[Line] = [table.head(self.sort, self._arrow)]
        if selected is not None and not selected.culprit:
            below.append(table.row(selected))
        room = max(3, height // 3) - len(below)
        below += [table.row(row) for row in odd[:room]]
        if len(odd) > room:
            below.append(line((f"and {len(odd) - room} more that stand out", "dim")))
        return Body(
            top=[clip(heat.legend(picture.states), width)],
            lines=lines,
            below=below,
            cursor=None if not lines else position // heat.per_row(width),
        )

    def press(self, key: str, picture: Picture, page: int) -> bool:
        if key == "greater_than_sign":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "v":
            self.reverse = not self.reverse
        elif key == "t":
            self.strips = not self.strips and len(picture.states) <= MOST_ROWS
        elif len(picture.states) > MOST_ROWS:
            ranks: list[int | None] = list(picture.states)
            count = heat.per_row(self.width)
            at = ranks.index(self.chosen.rank) if self.chosen.rank in ranks else 0
            steps = {"left": -1, "h": -1, "right": 1, "l": 1, "up": -count, "k": -count}
            steps |= {"down": count, "j": count, "pageup": -count * page, "pagedown": count * page}
            steps |= {"home": -at, "end": len(ranks)}
            if key not in steps:
                return False
            self.chosen.rank = ranks[max(0, min(len(ranks) - 1, at + steps[key]))]
            return True
        else:
            rows = self.rows(picture)
            to = moved(self._row, key, len(rows), page)
            if to is None or not rows:
                return to is not None
            self._row = to
            self.chosen.rank = rows[to].rank
        return True

    def pointed(self, column: int, row: int, picture: Picture) -> None:
        if len(picture.states) > MOST_ROWS:
            ranks = list(picture.states)
            at = row * heat.per_row(self.width) + column - heat.LABEL
            if 0 <= at < len(ranks) and column >= heat.LABEL:
                self.chosen.rank = ranks[at]
            return
        rows = self.rows(picture)
        if row < len(rows):
            self._row, self.chosen.rank = row, rows[row].rank
