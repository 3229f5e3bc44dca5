"""The overview: a row per rank, or a heat map of very many with the odd ones below."""

from __future__ import annotations

from typing import ClassVar

from ..picture import Picture, RankRow, Source
from ..rows import MOST_ROWS
from ..text import Line, clip, line
from ..widgets import heat, strip
from .base import Body, Key, View, moved, no_rank
from .columns import COLUMNS, SORTS, RankTable

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
        if self.strips:
            return self._strips(picture, rows, width)
        below = self._below(picture, rows, width, self.room or height - HEADER)
        return Body(
            top=[head],
            lines=[table.row(row) for row in rows],
            below=below,
            cursor=at,
        )

    def _below(self, picture: Picture, rows: list[RankRow], width: int, room: int) -> list[Line]:
        """The strips, where all rows and all strips fit on the screen."""
        timeline = picture.timeline
        if timeline is None or 2 * len(rows) + AROUND > room:
            return []
        return [
            strip.legend(width, timeline.tracks.values()),
            *strip.strip_lines(timeline, rows, width, self.chosen.rank),
            strip.axis(timeline, width, picture.is_over),
        ]

    def _strips(self, picture: Picture, rows: list[RankRow], width: int) -> Body:
        timeline = picture.timeline
        if timeline is None:
            why = "reading ..."
            if picture.source is Source.DUMPS:
                why = "dumps do not say when calls ended: what each rank did is not known"
            return Body(lines=[line((why, "dim"))])
        return Body(
            top=[strip.legend(width, timeline.tracks.values())],
            lines=strip.strip_lines(timeline, rows, width, None),
            below=[strip.axis(timeline, width, picture.is_over)],
            cursor=self._row,
        )

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
        return [row for row in rows if wanted in _searched(row)] if wanted else rows

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
            return self._move_on_map(key, picture, page)
        else:
            rows = self.rows(picture)
            to = moved(self._row, key, len(rows), page)
            if to is None or not rows:
                return to is not None
            self._row = to
            self.chosen.rank = rows[to].rank
        return True

    def _move_on_map(self, key: str, picture: Picture, page: int) -> bool:
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


def _searched(row: RankRow) -> str:
    words = (
        f"rank {row.rank}",
        row.state.value,
        row.words,
        row.call,
        row.group,
        row.site,
        row.host,
    )
    return " ".join(words).lower()
