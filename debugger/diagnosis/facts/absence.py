"""Why a rank has not come, as far as the operating system and its record tell."""

from __future__ import annotations

from ...record.layout import Activity
from ..limits import SECOND_NS
from .world import STOPPED, World

ENTERED = "entered_by_all"
"""In the data of a finding whose ranks are all where they should be: no stack says more."""


def cause_of(world: World, rank: int) -> str:
    """Why the rank has not come, as far as the operating system and its record tell."""
    record = world.ranks.get(rank)
    if record is None:
        return "unknown"
    if record.process.state in STOPPED:
        return "stopped"
    until_ns = record.process.ended_ns or world.now_ns
    silent_s = (until_ns - record.heartbeat_ns) / SECOND_NS if record.heartbeat_ns else 0.0
    if silent_s > max(1.0, 10 * world.limits.heartbeat_s):
        return "gil_held"
    if world.activity(rank, Activity.STORE) is not None:
        return "store"
    return "user_code" if record.location else "unknown"
