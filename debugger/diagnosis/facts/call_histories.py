"""The call histories of two ranks side by side, as a unified diff, and what the diff shows."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from ...record.majority import Vote
from ...record.signature import agreement_key
from ...record.snapshot import Call
from ...record.wording import call_text, ranks_text
from .world import GroupView, World

BEFORE, AFTER = 3, 6


@dataclass(frozen=True, slots=True)
class Story:
    """`sentence` says what one rank did differently, where the diff shows it ("" otherwise)."""

    details: tuple[str, ...]
    sentence: str


def compare_histories(world: World, view: GroupView, result: Vote[Any], seq: int) -> Story:
    """The largest party's calls around the mismatch against those of the first culprit."""
    reference = result.parties[0][1]
    odd = result.parties[1][1]
    left = _calls(world, view, reference[0], seq)
    right = _calls(world, view, odd[0], seq)
    rows = list(
        difflib.unified_diff(
            [call_text(call) for call in left],
            [call_text(call) for call in right],
            lineterm="",
            n=BEFORE,
        )
    )
    if not rows:
        return Story((), "")
    start = max(0, seq - BEFORE)
    lines = [
        f"--- {ranks_text(reference)}, from #{start}",
        f"+++ {ranks_text(odd)}, from #{start}",
        *(row for row in rows[2:] if not row.startswith("@@")),
    ]
    sentence = _sentence(left, right, seq, odd) if result.majority is not None else ""
    return Story(tuple(lines), sentence)


def _calls(world: World, view: GroupView, rank: int, seq: int) -> list[Call]:
    """The rank's calls from a few before the mismatch to a few after it."""
    history = world.ranks[rank].history
    if history is None:
        return []
    behind = view.states[rank].issued - seq
    rows = history.recent(behind + BEFORE, view.key)
    return [call for call in rows if seq - BEFORE <= call.seq < seq + AFTER]


def _sentence(left: list[Call], right: list[Call], seq: int, odd: tuple[int, ...]) -> str:
    """Only what two calls in a row show counts: one equal call may be chance."""
    usual = [agreement_key(call.signature) for call in left if call.seq >= seq]
    strange = [agreement_key(call.signature) for call in right if call.seq >= seq]
    if not usual or not strange:
        return ""
    who = ranks_text(odd)
    skipped = len(usual) > 1 and usual[1 : 1 + len(strange)] == strange[: len(usual) - 1]
    added = len(strange) > 1 and strange[1 : 1 + len(usual)] == usual[: len(strange) - 1]
    if skipped and not added:
        return f"{who} skipped {call_text(next(c for c in left if c.seq == seq))}"
    if added and not skipped:
        return f"{who} made an extra {call_text(next(c for c in right if c.seq == seq))}"
    return ""
