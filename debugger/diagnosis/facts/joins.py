"""Who waits for a group to form, and who has given that up."""

from __future__ import annotations

from collections.abc import Mapping

from ...record.snapshot import Wait
from .exceptions import last_exception, timed_out
from .world import World


def gave_up(world: World, rank: int) -> bool:
    """It has waited, too, until its own time limit ran out."""
    note = last_exception(world, rank)
    return note is not None and timed_out(note)


def last_to_come(waiting: Mapping[int, Wait]) -> Wait:
    """The wait of the rank that began to join last. The limits count from there: as long as ranks
    come, a large world is being started, and those that are to come are not late."""
    return max(waiting.values(), key=lambda wait: wait.since_ns)
