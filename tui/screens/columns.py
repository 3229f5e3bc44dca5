"""The columns of the overview: a record each, which rows, their order and the help are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..picture import Picture, RankRow, Source, State
from ..rows import OVER
from ..text import Line, Piece, duration, fit, place, size
from ..widgets import heat

WIDE = 120
"""Narrower screens than that have no column `what`: there the state says how a rank died."""
_BY_GRAVITY = tuple(State)[::-1]
_percent, _less = "{:.0f}%".format, "-{}".format


def _by_state(row: RankRow) -> str:
    return heat.TONE[row.state]


def _faded(row: RankRow) -> str:
    return "dim" if row.state in OVER else ""


def _of_a_run(picture: Picture) -> bool:
    """Plans and dumps have neither logs nor measurements."""
    return picture.source is Source.RUN


def _with_gpus(picture: Picture) -> bool:
    return picture.has_gpus


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table. `cells`: its width, less than 0 for text that is aligned to the left,
    as printf has it; 0: `share` fifths of what is left. `text` prints a value that is known.
    `first`: where rows may be sorted by it, ↓ if the largest value comes first, ↑ if the smallest.
    `fewest`: it needs a screen of that width. `needs`: what it needs of the run, all of it known
    before the first rank is seen, so that columns stay where they are."""

    title: str
    cells: int
    value: Callable[[RankRow, int], Any]
    explained: str = ""
    text: Callable[[Any], str] = str
    first: str = ""
    fewest: int = 0
    needs: Callable[[Picture], bool] = lambda _: True
    tone: Callable[[RankRow], str] = lambda _: ""
    share: int = 0

    def printed(self, row: RankRow, now_ns: int) -> str:
        """The text of its cell."""
        value = self.value(row, now_ns)
        return "" if value is None else self.text(value)

    def order(self, row: RankRow, now_ns: int) -> tuple[bool, float, int]:
        """The key to sort rows by: what is no number comes last, equals in order of ranks."""
        value = self.value(row, now_ns)
        known = isinstance(value, int | float) or str(value).isdecimal()
        return not known, float(value) * (1 if self.first == "↑" else -1) if known else 0, row.rank


COLUMNS = (
    TableColumn(
        "rank",
        -6,
        lambda row, _: f"{'▸' if row.culprit else ' '}{row.rank}",  # no number: in order of ranks
        first="↑",
        tone=lambda row: "mark" if row.culprit else "",
    ),
    TableColumn(
        "state",
        -10,
        lambda row, _: _BY_GRAVITY.index(row.state),
        text=lambda gravity: _BY_GRAVITY[gravity].value,
        first="↓",
        tone=_by_state,
    ),
    TableColumn(
        "what",
        -20,
        lambda row, _: row.words if row.words != row.state.value else None,
        "for whom it waits, how it ended",
        fewest=WIDE,
        tone=_by_state,
    ),
    TableColumn(
        "call", 0, lambda row, _: row.call, "the present or last one", tone=_faded, share=3
    ),
    TableColumn(
        "group", -12, lambda row, _: row.group, "of the call", fewest=140, tone=lambda _: "dim"
    ),
    TableColumn("seq", 7, lambda row, _: row.seq, "the call's number in its group", "#{}".format),
    TableColumn(
        "for",
        7,
        lambda row, now_ns: now_ns - row.since_ns if row.since_ns else None,
        "how long in the call, or out of it",
        duration,
        "↓",
        tone=_faded,
    ),
    TableColumn(
        "lag",
        4,
        lambda row, _: row.lag or None,
        "calls it is behind",
        _less,
        "↓",
        tone=lambda row: "warn" if row.lag > 1 else "",
    ),
    TableColumn("line", 0, lambda row, _: row.site, "where it is in the program", share=2),
    TableColumn(
        "step", 7, lambda row, _: row.progress.step, "of its log", str, "↑", 110, _of_a_run
    ),
    TableColumn("loss", 8, lambda row, _: row.progress.loss, "of its log", str, "", 110, _of_a_run),
    TableColumn(
        "cpu", 5, lambda row, _: row.usage.cpu_percent, "of a core", _percent, "↓", WIDE, _of_a_run
    ),
    TableColumn("memory", 7, lambda row, _: row.usage.rss_bytes, "", size, "↓", WIDE, _of_a_run),
    TableColumn(
        "gpu", 4, lambda row, _: row.usage.gpu_percent, "in use", _percent, "", 150, _with_gpus
    ),
    TableColumn("gpumem", 6, lambda row, _: row.usage.gpu_bytes, "", size, "", 150, _with_gpus),
)
SORTS = {column.title: column for column in COLUMNS if column.first}
"""The columns that rows may be sorted by."""


def figures(row: RankRow) -> list[tuple[str, str]]:
    """Returns what is known of a rank that the overview has no room for on a small screen."""
    shown = [(one.title, one.printed(row, 0)) for one in COLUMNS if one.fewest and one.cells > 0]
    return [figure for figure in shown if figure[1]]


class RankTable:
    """The columns that a screen of that width has for this picture."""

    def __init__(self, picture: Picture, width: int) -> None:
        self._now_ns, self._narrow = picture.now_ns, width < WIDE
        there = [one for one in COLUMNS if one.fewest <= width and one.needs(picture)]
        rest = max(12, width + 1 - sum(abs(one.cells) + 1 for one in there))
        self._columns = [(one, abs(one.cells) or round(rest * one.share / 5)) for one in there]

    def head(self, sort: str, arrow: str) -> Line:
        """The titles, with the arrow at the one that the rows are sorted by."""
        return self._line(
            lambda one: (one.title + arrow, "title") if one.title == sort else (one.title, "dim")
        )

    def row(self, row: RankRow) -> Line:
        """The cells of one rank."""

        def cell(column: TableColumn) -> Piece:
            if self._narrow and column.title == "state" and row.ending:
                return row.ending, column.tone(row)
            return column.printed(row, self._now_ns), column.tone(row)

        return self._line(cell)

    def _line(self, cell: Callable[[TableColumn], Piece]) -> Line:
        pieces: list[Piece] = []
        for column, cells in self._columns:
            text, tone = cell(column)
            text = place(text, cells) if column.title == "line" else text
            pieces += [(fit(text, cells, right=column.cells > 0), tone), (" ", "")]
        return tuple(pieces[:-1])
