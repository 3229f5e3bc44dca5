"""Says which ranks of a look may be judged yet, and what the diagnosis finds in them. Pure.

A look shows no order of events, so how long ranks have stood decides what counts:

1. Some rank has waited for `Limits.waiting_s`, else the job moves.
2. *Gone* is who has no process any more, *late* who stands outside all calls for longer than
   `late_ranks` grants it. While another one is at work, those that are gone or late may be waited
   for in vain for its lock, its file or its message: then only who is stopped counts, until others
   have waited for `moving_s`.
3. Where nobody is gone or late, all ranks have to wait, and for `still_s`: who is first to be
   through with a call that moves much data waits in the next one. That all of them wait in one call
   means something after `moving_s` alone, for it may be under way.
4. Where no rank is in a call, all of them have to wait for the store, or to sleep.

What is wrong then, the diagnosis tells from the look as a snapshot (`as_snapshot`). Nothing is
proven: a stack has no sequence numbers, shapes, dtypes or reduce ops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ..diagnosis.diagnose import diagnose
from ..diagnosis.findings import Finding
from ..diagnosis.limits import Limits as At
from ..record.snapshot import Snapshot
from ..record.wording import RankState, ranks_text, seconds, verb
from .as_snapshot import as_snapshot
from .look import Limits, Look, Stance, is_asleep, is_coming, is_idle
from .suspicions import each, is_unserved, said, state, went_apart

_AT_ONCE = At(hang_timeout_s=0.0, settle_s=0.0, undecided_s=0.0, agreeing_s=0.0, heartbeat_s=1e9)
"""Who has not waited for long enough is not shown to the diagnosis."""


def judge(look: Look, limits: Limits) -> list[Finding]:
    """The finding, if there is one."""
    waiting = {rank: one for rank, one in look.ranks.items() if one.waits}
    if not waiting:
        in_store = {rank: one for rank, one in look.ranks.items() if one.in_store}
        if not in_store:
            return _asleep(look, limits)
        if len(in_store) == len(look.ranks) >= look.world_size:
            lasted = min(one.still_s for one in in_store.values()) >= limits.busy_s
            return _judged(look, {}, sorted(look.ranks)) if lasted else []
        # As elastic's barrier waits: a call of all ranks to those that do not come to it.
        waiting = {
            rank: replace(one, doing=RankState.COLLECTIVE, group="")
            for rank, one in in_store.items()
        }
    longest_s = max(one.still_s for one in waiting.values())
    if longest_s < limits.waiting_s:
        return []
    late, ended = _away(look, waiting, limits)
    found: list[Finding] = []
    if ended or look.twice:
        found = _judged(look, waiting, ended=ended)
    if late and not found:
        found = _judged(look, waiting, late, ended)
    if not found and len(waiting) == len(look.ranks):
        # The ranks of other nodes may start later.
        came = look if longest_s >= limits.moving_s else replace(look, never_came=())
        found = _judged(came, waiting, lasted=lambda one: _has_lasted(one, look, waiting, limits))
    return found


def _judged(
    look: Look,
    waiting: Mapping[int, Stance],
    late: Collection[int] = (),
    ended: Collection[int] = (),
    lasted: Callable[[Finding], bool] = lambda _: True,
) -> list[Finding]:
    """Returns what is wrong, if anything is; where ranks are away, something that is about them."""
    away = {*late, *ended}
    errors: list[Finding] = []
    if away and waiting and not look.twice:
        # Or nobody is left to send what one of those that wait receives of anybody.
        errors = [
            one
            for one in _errors(as_snapshot(look, waiting, late, ended))
            if not away.isdisjoint(one.culprits) or one.kind == "unmatched_p2p"
        ]
    elif away or look.twice:
        errors = _errors(as_snapshot(look, waiting, late, ended))
    else:
        errors = _to_nobody(look, waiting)
        talking = {rank for rank, one in waiting.items() if one.doing is RankState.MESSAGE}
        if talking and not errors:
            # Who waits for a message keeps others from coming to the call that they would be in.
            found = _errors(as_snapshot(look, waiting, apart=True))
            errors = [one for one in found if not talking.isdisjoint(one.culprits)]
        if went_apart(waiting) and not errors:
            found = _errors(as_snapshot(look, waiting, by_way=True))
            errors = [one for one in found if one.kind == "op_mismatch"]
        errors = errors or _errors(as_snapshot(look, waiting))
    return [said(one, look, waiting, ended) for one in errors[:1] if lasted(one)]


def _errors(looks: tuple[Snapshot, Snapshot]) -> list[Finding]:
    found = diagnose(*looks, _AT_ONCE).findings
    return [one for one in found if one.severity == "error"]


def _away(look: Look, waiting: Mapping[int, Stance], limits: Limits) -> tuple[list[int], list[int]]:
    """Returns the late ranks and the gone ones, as far as either may be blamed yet."""
    longest_s = max(one.still_s for one in waiting.values())
    joining = all(one.doing is RankState.JOIN for one in waiting.values())
    late = late_ranks(look.ranks, waiting, limits)
    ended = sorted(
        {*look.missing, *(r for r, o in look.ranks.items() if o.doing is RankState.GONE)}
    )
    # Ranks may be started one after the other, and who comes last has no process yet. Who dials a
    # store again and again sleeps for a short while each time: then the job's age tells.
    if joining and longest_s < limits.still_s and look.age_s < limits.moving_s:
        ended = []
    # Whether they were in a group of some ranks nobody can tell any more.
    if all(one.group for one in waiting.values()) and longest_s < limits.moving_s:
        ended = []
    others = [one for r, one in look.ranks.items() if r not in {*waiting, *late, *ended}]
    if others and longest_s < limits.moving_s:
        ended = []  # who is ready first may end first
        if any(map(is_coming, others)):
            late = [rank for rank in late if look.ranks[rank].cause == "stopped"]
    return late, ended


def _to_nobody(look: Look, waiting: Mapping[int, Stance]) -> list[Finding]:
    """A message to or from a rank that no world of this size has: the diagnosis takes ranks that it
    does not know for ranks that have not come."""
    for rank, one in sorted(waiting.items()):
        if one.peer is not None and 0 < look.world_size <= one.peer:
            message = f"there is no rank {one.peer} in a world of {look.world_size}"
            return [Finding("invalid_argument", message, (rank,))]
    return []


def _has_lasted(found: Finding, look: Look, waiting: Mapping[int, Stance], limits: Limits) -> bool:
    """Whether what is said where all ranks wait has lasted for long enough."""
    waits_s = [one.still_s for one in waiting.values()]
    if found.cause == "elsewhere" or is_unserved(look, waiting):
        return min(waits_s) >= limits.waiting_s
    if max(waits_s) < limits.moving_s and (found.kind == "stalled" or went_apart(waiting)):
        return False
    # The messages of two that wait for handles may be under way.
    unknown = all(one.of_unknown(waiting) for one in waiting.values())
    for_s = limits.busy_s if unknown else limits.still_s
    return all(
        # Of who waits on a core no look shows since when.
        one.still_s >= (min(for_s, limits.waiting_s) if one.running else for_s)
        for one in waiting.values()
    )


def _asleep(look: Look, limits: Limits) -> list[Finding]:
    """No rank is in a call, and all that are left have slept for as long as a job at work may."""
    left = {rank: one for rank, one in look.ranks.items() if one.doing is not RankState.GONE}
    if not left or not all(is_asleep(one, limits.moving_s) for one in left.values()):
        return []
    ended = sorted({*look.missing, *(set(look.ranks) - set(left))})
    return _judged(look, {}, sorted(left), ended)


def at_work(look: Look) -> str:
    """Returns a sentence on a job of which nothing is found."""
    waiting = {rank: one for rank, one in look.ranks.items() if one.waits}
    others = sorted(set(look.ranks) - set(waiting))
    if not look.ranks:
        return "no rank could be looked at"
    unreadable = [rank for rank, one in look.ranks.items() if one.doing is RankState.UNREADABLE]
    if unreadable:
        return (
            f"the stacks of {ranks_text(unreadable)} cannot be read: what "
            f"{'they do' if len(unreadable) > 1 else 'it does'} is not known"
        )
    if all(one.in_store for one in look.ranks.values()):
        return f"{ranks_text(look.ranks)} {verb(others, 'waits', 'wait')} for the store"
    if not waiting:
        return f"no rank is in a call ({each(look.ranks)}); nothing is wrong that can be seen"
    longest_s = max(one.still_s for one in waiting.values())
    if not others:
        return (
            f"all ranks are in calls, for {seconds(int(longest_s * 1e9))} at most; nothing "
            "is wrong that can be seen"
        )
    idle = [rank for rank in others if is_idle(look.ranks[rank])]
    busy = [rank for rank in others if rank not in idle]
    doing = [f"{ranks_text(busy)} {verb(busy, 'is', 'are')} at work"] if busy else []
    doing += [f"rank {rank} {state(look.ranks[rank])}" for rank in idle]
    return (
        f"{ranks_text(waiting)} {verb(tuple(waiting), 'waits', 'wait')}, for "
        f"{seconds(int(longest_s * 1e9))} at most, while {' and '.join(doing)}; "
        "nothing is wrong that can be seen"
    )


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
    """Returns those of the ranks that do not come to where others are waiting."""
    waits_s = [one.still_s for one in waiting.values()]
    return [
        rank
        for rank, one in sorted(ranks.items())
        if rank not in waiting and _is_late(one, max(waits_s), min(waits_s), limits)
    ]


def _is_late(one: Stance, longest_s: float, newest_s: float, limits: Limits) -> bool:
    """`longest_s` and `newest_s`: so long have the first and the last that came to wait waited."""
    if one.doing in (RankState.UNREADABLE, RankState.GONE):
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
