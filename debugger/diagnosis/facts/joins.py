"""Ranks wait for a group to form, and may give up."""

from __future__ import annotations

from collections.abc import Mapping

from ...record.snapshot import Wait
from .exceptions import last_exception, timed_out
from .world import World


def gave_up(world: World, rank: int) -> bool:
    """Returns whether the rank, too, has waited, until its own time limit ran out."""
    note = last_exception(world, rank)
    return note is not None and timed_out(note)


def last_to_come(waiting: Mapping[int, Wait]) -> Wait:
    """The wait of the rank that began to join last. The limits count from there: as long as ranks
    come, a large world is being started, and those that are to come are not late."""
    return max(waiting.values(), key=lambda wait: wait.since_ns)
