"""Ranks that wrap different models: DistributedDataParallel compares how many parameters they have,
and raises on all ranks, on the right ones as well as on the wrong one. Which is which, a vote says.
"""

from __future__ import annotations

import re

from ...record.dispute import Vote, vote
from ...record.snapshot import Note
from ...record.wording import ranks_text, verb
from .evidence import members_of_last_call
from .exceptions import last_exception
from .world import World

_COUNTS = re.compile(r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
"""torch's words, in the numbers of the group."""


def other_models(world: World, rank: int, note: Note) -> Vote[int] | None:
    """Returns how many parameters each rank has, as a vote, where the rank's exception is about
    that and they differ."""
    members = members_of_last_call(world, rank)
    if _COUNTS.search(note.message) is None or members is None:
        return None
    counts: dict[int, int] = {}
    for teller in members:
        theirs = last_exception(world, teller) if teller in world.ranks else None
        counted = _COUNTS.search(theirs.message) if theirs is not None else None
        if counted is None:
            continue
        own, own_count, other, other_count = map(int, counted.groups())
        if max(own, other) < len(members):
            counts[members[own]] = own_count
            counts[members[other]] = other_count
    answers: dict[int, list[int]] = {}
    for member, count in counts.items():
        answers.setdefault(count, []).append(member)
    return vote(answers, len(members) - len(counts)) if len(answers) > 1 else None


def models_text(result: Vote[int]) -> str:
    """`ranks wrap different models: rank 2 has 3 parameters, ranks 0,1 have 4 parameters`."""
    parts = [
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} {count} parameters"
        for count, ranks in reversed(result.parties)
    ]
    return f"ranks wrap different models: {', '.join(parts)}"
