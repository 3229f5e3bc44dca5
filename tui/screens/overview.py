"""The overview: a row per rank, or a heat map of very many with the odd ones below."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from ..picture import Picture, RankRow, Source, State
from ..rows import MOST_ROWS, OVER
from ..text import Line, clip, columns, duration, line, place, size
from ..widgets import heat, strip
from .base import Body, Key, View, moved, no_rank

_GRAVEST = (
    State.DEAD,
    State.STOPPED,
    State.LATE,
    State.BREAKPOINT,
    State.UNSEEN,
    State.STARTING,
    State.COMPUTING,
    State.IN_CALL,
    State.WAITING,
    State.ENDED,
    State.FINISHED,
)
_NOT_KNOWN = float("-inf")
HEADER = 6
"""Lines of the header and the foot, where nothing was found."""
AROUND = 4
"""The rows' head, the line above the strips, what their signs mean, and their axis."""

_SORTS: dict[str, Callable[[RankRow, int], float]] = {
    "rank": lambda row, _: -row.rank,
    "state": lambda row, _: -_GRAVEST.index(row.state),
    "lag": lambda row, _: row.lag,
    "for": lambda row, now_ns: now_ns - row.since_ns if row.since_ns else _NOT_KNOWN,
    "cpu": lambda row, _: _known(row.usage.cpu_percent),
    "memory": lambda row, _: _known(row.usage.rss_bytes),
    "step": lambda row, _: -float(row.progress.step) if row.progress.step.isdecimal() else 0.0,
}
"""What the rows may be sorted by: the greatest measure comes first."""
_SMALLEST_FIRST = ("rank", "step")


def _known(value: float | None) -> float:
    return _NOT_KNOWN if value is None else value


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
        widths = _widths(width, picture.rows.values())
        if not rows:
            text = f"no row matches {self.filter!r}; press / and Enter to see all"
            return Body(top=[_head(self.sort, self._arrow, widths)], lines=[line((text, "dim"))])
        at = self._row = self._at(picture, rows)
        if self.strips:
            return self._strips(picture, rows, width)
        below = self._below(picture, rows, width, self.room or height - HEADER)
        return Body(
            top=[_head(self.sort, self._arrow, widths)],
            lines=[_line(row, picture.now_ns, width, widths) for row in rows],
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
        return "↑" if (self.sort in _SMALLEST_FIRST) is not self.reverse else "↓"

    def rows(self, picture: Picture) -> list[RankRow]:
        """The rows in the chosen order, those that the filter lets through."""
        measure = _SORTS[self.sort]
        rows = sorted(
            picture.rows.values(), key=lambda row: (-measure(row, picture.now_ns), row.rank)
        )
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
        widths = _widths(width, picture.rows.values())
        below: list[Line] = [_head(self.sort, self._arrow, widths)]
        if selected is not None and not selected.culprit:
            below.append(_line(selected, picture.now_ns, width, widths))
        room = max(3, height // 3) - len(below)
        below += [_line(row, picture.now_ns, width, widths) for row in odd[:room]]
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
            names = list(_SORTS)
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


# Columns as (title, fewest columns of the screen, width); width 0 takes what is left.
_COLUMNS = (
    ("rank", 0, 6),
    ("state", 0, 10),
    ("what", 120, 20),
    ("call", 0, 0),
    ("group", 140, 12),
    ("seq", 0, 7),
    ("for", 0, 7),
    ("lag", 0, 4),
    ("line", 0, 0),
    ("step", 110, 7),
    ("loss", 110, 8),
    ("cpu", 120, 5),
    ("memory", 120, 7),
    ("gpu", 150, 4),
    ("gpumem", 150, 6),
)
_RIGHTS = (5, 6, 7, 9, 10, 11, 12, 13, 14)


_MAY_LACK: dict[str, Callable[[RankRow], bool]] = {
    "step": lambda row: not row.progress.step,
    "loss": lambda row: not row.progress.loss,
    "cpu": lambda row: row.usage.cpu_percent is None,
    "memory": lambda row: row.usage.rss_bytes is None,
    "gpu": lambda row: row.usage.gpu_percent is None,
    "gpumem": lambda row: row.usage.gpu_bytes is None,
}
"""Columns that are left out where no rank has anything for them."""


def _widths(width: int, rows: Collection[RankRow]) -> list[int]:
    """The fixed columns, and the two that share the rest: the call gets more than the line."""
    empty = {title for title, lacks in _MAY_LACK.items() if all(map(lacks, rows))}
    there = [fewest <= width and title not in empty for title, fewest, _ in _COLUMNS]
    fixed = sum(one + 1 for (_, _, one), shown in zip(_COLUMNS, there, strict=True) if shown)
    rest = max(12, width - fixed + 1)
    call = rest * 3 // 5
    widths = []
    for (title, _, fixed_size), shown in zip(_COLUMNS, there, strict=True):
        flexible = {"call": call, "line": rest - call}.get(title, fixed_size)
        widths.append(flexible if shown else 0)
    return widths


def _head(sort: str, arrow: str, widths: Sequence[int]) -> Line:
    cells = [
        (f"{title}{arrow if title == sort else ''}", "title" if title == sort else "dim")
        for title, _, _ in _COLUMNS
    ]
    return columns(cells, widths, _RIGHTS)


def _line(row: RankRow, now_ns: int, width: int, widths: Sequence[int]) -> Line:
    tone = heat.TONE[row.state]
    ended = row.state in OVER
    usage = row.usage
    state = row.state.value if width >= 120 else _short(row)
    cells = [
        (f"▸{row.rank}" if row.culprit else f" {row.rank}", "mark" if row.culprit else ""),
        (state, tone),
        ("" if row.words == row.state.value else row.words, tone),
        (row.call, "dim" if ended else ""),
        (row.group, "dim"),
        ("" if row.seq is None else f"#{row.seq}", ""),
        (duration(now_ns - row.since_ns) if row.since_ns else "", "dim" if ended else ""),
        (f"-{row.lag}" if row.lag else "", "warn" if row.lag > 1 else ""),
        (place(row.site, widths[8]), ""),
        (row.progress.step, ""),
        (row.progress.loss, ""),
        ("" if usage.cpu_percent is None else f"{usage.cpu_percent:.0f}%", ""),
        ("" if usage.rss_bytes is None else size(usage.rss_bytes), ""),
        ("" if usage.gpu_percent is None else f"{usage.gpu_percent:.0f}%", ""),
        ("" if usage.gpu_bytes is None else size(usage.gpu_bytes), ""),
    ]
    return columns(cells, widths, _RIGHTS)


def _short(row: RankRow) -> str:
    """The state in ten cells, how a rank died included."""
    return row.ending or row.state.value
