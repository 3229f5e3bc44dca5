"""When a rank that is in no call has been away for so long that it does not come any more. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..supervisor.stacks.sights import is_a_sleep
from .stance import Doing, Stance


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: how long a call has to wait before anything is said (`waiting_s`), and how long for
    a rank that sleeps at one place, goes round at one place, or moves."""

    waiting_s: float = 1.0
    still_s: float = 5.0
    busy_s: float = 10.0
    moving_s: float = 60.0


def is_idle(one: Stance) -> bool:
    """Whether it stands in its own code and waits for a client, as a server does."""
    return one.doing is Doing.CODE and bool(one.serves) and one.cause != "stopped"


def is_asleep(one: Stance, for_s: float = 0.0) -> bool:
    """Whether one that is in no call has slept for so long, and nothing is seen that wakes it: it
    is no server, does and awaits no work, and has set itself no time."""
    asleep = one.doing in (Doing.CODE, Doing.ENDING) and one.still_s > 0 and one.still_s >= for_s
    busy = one.running or one.computes or one.at_work or one.moves_data or bool(one.serves)
    return asleep and not busy and not is_a_sleep(one.still_s, one.wakes_in_s)


def is_coming(one: Stance) -> bool:
    """Whether one that is in no call, and not late, may do something that others wait for."""
    return one.doing not in (Doing.GONE, Doing.UNREADABLE) and not is_idle(one)


def wakes_before(one: Stance, longest_s: float, limits: Limits) -> bool:
    """Whether it has set itself a time at which it wakes up, and nobody will have waited for long
    until then: for two thirds of what no rank may take, since many a sleep of a minute stands where
    a rank hangs. Who sleeps shortly, again and again, is in a loop that polls."""
    if one.wakes_in_s is None or one.still_s + one.wakes_in_s < limits.still_s:
        return False
    return longest_s + one.wakes_in_s < limits.moving_s * 2 / 3


def late_ranks(
    ranks: Mapping[int, Stance], waiting: Mapping[int, Stance], limits: Limits
) -> list[int]:
    """Those of the ranks that do not come to where others are waiting."""
    waits_s = [one.still_s for one in waiting.values()]
    return [
        rank
        for rank, one in sorted(ranks.items())
        if rank not in waiting and _is_late(one, max(waits_s), min(waits_s), limits)
    ]


def _is_late(one: Stance, longest_s: float, newest_s: float, limits: Limits) -> bool:
    """`longest_s` and `newest_s`: so long have the first and the last that came to wait waited."""
    if one.doing in (Doing.UNREADABLE, Doing.GONE):
        return False
    if is_idle(one):
        return False  # those that wait for it wait for somebody outside the job
    slept_s = min(limits.still_s, 1.0)
    if one.cause == "stopped":
        return longest_s >= limits.waiting_s
    if longest_s >= limits.moving_s:
        return one.running or one.at_work or not one.still_s or one.still_s >= slept_s
    if one.running or one.at_work or (one.moves_data and one.cause == "user_code"):
        may_go_on = one.computes or one.moves_data or one.at_work or not one.still_s
        return not may_go_on and newest_s >= limits.busy_s
    if not one.still_s:
        return newest_s >= limits.busy_s  # it sleeps now and then, in a loop that polls
    if wakes_before(one, longest_s, limits):
        return False
    # It has slept for a while itself: one that has just gone to sleep is at work.
    slept_long = one.still_s >= slept_s and newest_s >= limits.still_s
    return longest_s >= limits.still_s and (slept_long or one.still_s >= limits.still_s)
