"""Draws a heat map of ranks: one cell a rank, whose letter says what its colour says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ..picture import State
from ..text import Line, Piece

LETTERS: dict[State, str] = {
    State.STARTING: "s",
    State.UNSEEN: "?",
    State.COMPUTING: "·",
    State.IN_CALL: "o",
    State.WAITING: "w",
    State.LATE: "L",
    State.BREAKPOINT: "B",
    State.STOPPED: "T",
    State.DEAD: "X",
    State.ENDED: "e",
    State.FINISHED: "f",
}
TONE: dict[State, str] = {
    State.STARTING: "dim",
    State.UNSEEN: "warn",
    State.COMPUTING: "good",
    State.IN_CALL: "busy",
    State.WAITING: "busy",
    State.LATE: "warn",
    State.BREAKPOINT: "warn",
    State.STOPPED: "bad",
    State.DEAD: "bad",
    State.ENDED: "dim",
    State.FINISHED: "dim",
}
LABEL = 7


def per_row(width: int) -> int:
    """How many ranks a row has: the largest power of two that fits, at least 8."""
    count = 8
    while count * 2 + LABEL <= width:
        count *= 2
    return count


def heat_lines(
    states: Mapping[int, State], width: int, culprits: Collection[int], cursor: int | None
) -> list[Line]:
    """The map; each row begins with its first rank. Culprits and the cursor are reversed."""
    ranks = list(states)
    count = per_row(width)
    return [
        _row(ranks[start : start + count], states, culprits, cursor)
        for start in range(0, len(ranks), count)
    ]


def _row(
    ranks: Sequence[int], states: Mapping[int, State], culprits: Collection[int], cursor: int | None
) -> Line:
    pieces: list[Piece] = [(f"{ranks[0]:>{LABEL - 1}} ", "dim")]
    for rank in ranks:
        state = states[rank]
        tone = "cursor" if rank == cursor else "mark" if rank in culprits else TONE[state]
        letter = LETTERS[state]
        if pieces[-1][1] == tone:
            pieces[-1] = (pieces[-1][0] + letter, tone)
        else:
            pieces.append((letter, tone))
    return tuple(pieces)


def legend(states: Mapping[int, State]) -> Line:
    """How many ranks are in which state, with the letter of each."""
    counts = Counter(states.values())
    pieces: list[Piece] = []
    for state in State:
        if counts[state]:
            pieces.append((f"{LETTERS[state]} {state.value} {counts[state]}", TONE[state]))
            pieces.append(("  ", ""))
    return tuple(pieces[:-1])
