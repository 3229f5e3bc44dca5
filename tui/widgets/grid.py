"""Draws a group's last collectives: a column a sequence number, a row a rank."""

from __future__ import annotations

from ...record.layout import CallState
from ...record.snapshot import Call
from ..picture import Matrix
from ..text import Line, Piece, fit

LABEL = 11
CELL = 2
SYMBOLS = {
    "left": ("■", "good", "the call is complete on this rank"),
    "entered": ("○", "busy", "the rank is in the call, or it goes on in the background"),
    "failed": ("!", "bad", "the call raised on this rank"),
    "differs": ("≠", "mark", "the rank's call is not that of most"),
    "to come": ("·", "dim", "the rank has not entered it"),
    "forgotten": ("?", "dim", "older than the 4,096 calls that a rank keeps"),
}


def symbol(call: Call | None, odd: bool, came: bool) -> str:
    """Returns the symbol of a cell. `came`: the rank has made that call, though it may be
    forgotten."""
    if call is None:
        return "forgotten" if came else "to come"
    if odd:
        return "differs"
    if call.state is CallState.FAILED:
        return "failed"
    return "left" if call.state is CallState.COMPLETED else "entered"


def window(matrix: Matrix, column: int | None, width: int) -> range:
    """The columns in sight: the last ones, or those around the cursor's."""
    count = min(len(matrix.seqs), max(1, (width - LABEL) // CELL))
    last = len(matrix.seqs)
    if column is not None and column < last - count:
        start = max(0, column - count // 2)
        return range(start, start + count)
    return range(last - count, last)


def head(matrix: Matrix, columns: range, width: int) -> Line:
    """The sequence numbers, one for every fourth column."""
    text = " " * LABEL
    for position, column in enumerate(columns):
        if column % 4 == 0 or position == 0:
            at = LABEL + position * CELL
            label = f"#{matrix.seqs[column]} "
            if at >= len(text) and at + len(label) <= width:
                text += " " * (at - len(text)) + label
    return ((text, "dim"),)


def grid_lines(matrix: Matrix, columns: range, cursor: tuple[int, int] | None) -> list[Line]:
    """A line a rank; `cursor` is (row, column)."""
    found = []
    for row, rank in enumerate(matrix.ranks):
        pieces: list[Piece] = [(fit(f"rank {rank}", LABEL), "")]
        for column in columns:
            seq = matrix.seqs[column]
            call = matrix.calls.get((rank, seq))
            odd = rank in matrix.odd.get(seq, ())
            name = symbol(call, odd, matrix.issued.get(rank, 0) > seq)
            text, tone, _ = SYMBOLS[name]
            pieces.append((text, "cursor" if (row, column) == cursor else tone))
            pieces.append((" " * (CELL - 1), ""))
        found.append(tuple(pieces))
    return found


def legend() -> Line:
    """Returns a line with the meanings of the symbols."""
    pieces: list[Piece] = []
    for name, (text, tone, _) in SYMBOLS.items():
        pieces += [(text, tone), (f" {name}  ", "dim")]
    return tuple(pieces)
