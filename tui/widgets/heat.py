"""Draws a heat map of ranks: one cell a rank, whose letter says what its colour says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ..picture import State
from ..text import Line, Piece, add_piece

LOOKS: dict[State, tuple[str, str, str]] = {
    State.STARTING: ("s", "dim", "not seen yet, or in init_process_group or new_group"),
    State.UNSEEN: ("?", "warn", "it has left no record that can be read, and the run is over"),
    State.COMPUTING: ("·", "good", "in the program's own code; nobody waits for it"),
    State.IN_CALL: ("o", "busy", "in a call that everybody has entered, or that may end by itself"),
    State.WAITING: ("w", "busy", "in a call that others have not entered yet"),
    State.LATE: ("L", "warn", "in its own code; others have waited for it for a second or more"),
    State.BREAKPOINT: ("B", "warn", "paused at a breakpoint"),
    State.STOPPED: ("T", "bad", "stopped by a signal (SIGSTOP, Ctrl-Z, a debugger)"),
    State.DEAD: ("X", "bad", "the process was killed or ended with a status other than 0"),
    State.ENDED: ("e", "dim", "its process ended after what was found, or with a stopped run"),
    State.FINISHED: ("f", "dim", "the process ended with status 0"),
}
"""A state's letter, its tone, and what it means."""
LETTERS = {state: letter for state, (letter, _, _) in LOOKS.items()}
TONE = {state: tone for state, (_, tone, _) in LOOKS.items()}
LABEL = 7


def per_row(width: int) -> int:
    """Returns how many ranks a row has: the largest power of two that fits, at least 8."""
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
    lines = []
    for start in range(0, len(ranks), count):
        pieces: list[Piece] = [(f"{ranks[start]:>{LABEL - 1}} ", "dim")]
        for rank in ranks[start : start + count]:
            state = states[rank]
            tone = "cursor" if rank == cursor else "mark" if rank in culprits else TONE[state]
            add_piece(pieces, LETTERS[state], tone)
        lines.append(tuple(pieces))
    return lines


def legend(states: Mapping[int, State]) -> Line:
    """Returns a line of how many ranks are in which state, with the letter of each."""
    counts = Counter(states.values())
    pieces: list[Piece] = []
    for state in State:
        if counts[state]:
            pieces.append((f"{LETTERS[state]} {state.value} {counts[state]}", TONE[state]))
            pieces.append(("  ", ""))
    return tuple(pieces[:-1])
