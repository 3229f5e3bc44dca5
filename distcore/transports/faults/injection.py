"""Faults on the connections of the groups that this process makes from now on: what a test of a
program on distcore, or a tool for such tests, puts there. Without a plan nothing of it is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .faulty import FaultyLinks
from .late_socket import send_before_the_end
from .plan import Clock, FaultPlan

_plan: FaultPlan | None = None
_clock = Clock()


def inject(plan: FaultPlan | None) -> None:
    """The plan's faults happen to the connections of all groups made from now on; None: none do.

    Every process must be given the same plan before it makes a group: the group of which a pair is
    concerned is connected by TCP whatever DISTCORE_TRANSPORT says, with its data on the wire, not
    in shared memory, and with a checksum for every frame, so that what is corrupted is found. The
    plan's ranks are global ranks; its clock begins when the first of those groups is connected.
    """
    global _plan, _clock
    _plan, _clock = plan, Clock()


def links(
    ranks: Sequence[int], rank: int, group: str, aside: bool, check: Callable[[], None]
) -> FaultyLinks | None:
    """The faults for a group that is being made; None where it has none. The same answer on all
    its ranks. See `connecting.connect` for the arguments, and `FaultyLinks` for `check`."""
    plan = _plan
    if plan is None:
        return None
    if aside:
        plan = replace(plan, faults=tuple(one for one in plan.faults if one.is_timed_hole))
    if not plan.concerns_group(ranks):
        return None
    send_before_the_end()
    return FaultyLinks(plan, ranks, rank, group, _clock, check)


def connected(aside: bool) -> None:
    """A group is there."""
    if not aside:
        _clock.begin()
