"""What the stances of all ranks of a job let one suspect: stances in, findings out. Pure.

The rules, in their order; each needs ranks that have waited in a call for a while:

1. *Gone*: a rank's process is not there any more, and all others wait, or do not come. Who waits
   for a message of anybody waits for nobody in particular: where only such ranks are left, it is
   they that have one receive too many, or the others that sent one too few.
2. *Absent*: a rank stands in its own code, in the store, at its end, or is stopped. One that sleeps
   at one place is late after `Limits.still_s`, one that polls or goes round at one place after
   `busy_s`, one that moves, or computes, or saves, or waits for what it has started and that is at
   work (a process, or one of its threads), after `moving_s`: a job at work has slow ranks, too.
   Where others have just come to wait, the job moves (the first stage of a pipeline waits for
   long): then it has to have slept for so long itself, or others have to have waited for
   `moving_s`. A server that waits for a client is not late, and one that sleeps until a time of its
   own is not where that comes soon. While one that is not late is on its way, others that are may
   wait for it, for its lock or its file: only who is stopped is named before `moving_s`.
3. *Messages*: who waits for whom, by the peers on the stacks. A peer that is no rank of the world
   is an invalid argument; a cycle is a deadlock; a send and a receive that face each other with
   different tags are a mismatch.
4. *Groups*: ranks make groups of other ranks, or only some make one.
5. *Calls*: ranks wait in different calls of one group (or with different roots).
6. *Sub-groups*: everybody waits in calls of groups, and nobody is absent: a cycle of groups.
7. *Stalled*: everybody waits in the same call.

The last five need all ranks to have waited for `still_s`: who is first to be through with a call
that moves much data waits in the next one. Who is known not to be waited for is not named.

Nothing is proven: a stack has no sequence numbers, shapes, dtypes or reduce ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..diagnosis.findings import Finding
from ..record.wording import at_site, ranks_text, seconds, site_text, verb
from .all_waiting import all_waiting
from .awaiting import may_await, of_anybody
from .in_store import all_in_store, in_store
from .lateness import Limits, is_asleep, is_coming, is_idle, late_ranks
from .stance import Doing, Stance
from .suspicions import Look, finding, who
from .words import state


def judge(look: Look, limits: Limits) -> list[Finding]:
    """The finding, if there is one."""
    waiting = {rank: one for rank, one in look.ranks.items() if one.waits}
    longest_s = max((one.still_s for one in waiting.values()), default=0.0)
    if not waiting and (said := all_in_store(look.ranks, look.world_size, limits.busy_s)):
        return [finding("missing_rank", said, sorted(look.ranks), look, cause="store")]
    if not waiting and any(map(in_store, look.ranks.values())):
        return _beside_store(look, limits)
    if not waiting:
        return _asleep(look, limits)
    if longest_s < limits.waiting_s:
        return []
    found = _twice(look, waiting) or _gone(look, waiting, limits) or _absent(look, waiting, limits)
    if found is None and len(waiting) == len(look.ranks):
        found = all_waiting(look, waiting, limits)
    return [found] if found else []


def _beside_store(look: Look, limits: Limits) -> list[Finding]:
    """Some wait for the store, as elastic's barrier does, and nobody for a call: who of the others
    has gone, or does not come?"""
    waiting = {rank: one for rank, one in look.ranks.items() if in_store(one)}
    if max(one.still_s for one in waiting.values()) < limits.waiting_s:
        return []
    found = _gone(look, waiting, limits) or _absent(look, waiting, limits)
    return [found] if found else []


def at_work(look: Look) -> str:
    """One sentence on a job of which nothing is found."""
    waiting = {rank: one for rank, one in look.ranks.items() if one.waits}
    others = sorted(set(look.ranks) - set(waiting))
    if not look.ranks:
        return "no rank could be looked at"
    unreadable = [rank for rank, one in look.ranks.items() if one.doing is Doing.UNREADABLE]
    if unreadable:
        return (
            f"the stacks of {ranks_text(unreadable)} cannot be read: what "
            f"{'they do' if len(unreadable) > 1 else 'it does'} is not known"
        )
    if all(map(in_store, look.ranks.values())):
        return f"{ranks_text(look.ranks)} {verb(others, 'waits', 'wait')} for the store"
    if not waiting:
        return f"no rank is in a call ({_each(look.ranks)}); nothing is wrong that can be seen"
    longest = max(waiting.values(), key=lambda one: one.still_s)
    if not others:
        return (
            f"all ranks are in calls, for {seconds(int(longest.still_s * 1e9))} at most; nothing "
            "is wrong that can be seen"
        )
    idle = [rank for rank in others if is_idle(look.ranks[rank])]
    busy = [rank for rank in others if rank not in idle]
    doing = [f"{ranks_text(busy)} {verb(busy, 'is', 'are')} at work"] if busy else []
    doing += [f"rank {rank} {state(look.ranks[rank])}" for rank in idle]
    return (
        f"{ranks_text(waiting)} {verb(tuple(waiting), 'waits', 'wait')}, for "
        f"{seconds(int(longest.still_s * 1e9))} at most, while {' and '.join(doing)}; "
        "nothing is wrong that can be seen"
    )


# -- the rules ----------------------------------------------------------------------------------


def _twice(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    if not look.twice:
        return None
    return finding(
        "join_timeout",
        f"suspected: two processes say that they are {ranks_text(look.twice)}, and {who(waiting)}",
        look.twice,
        look,
    )


def _asleep(look: Look, limits: Limits) -> list[Finding]:
    """No rank is in a call, and all that are left have slept for as long as a job at work may."""
    left = {rank: one for rank, one in look.ranks.items() if one.doing is not Doing.GONE}
    if not left or not all(is_asleep(one, limits.moving_s) for one in left.values()):
        return []
    ended = len(left) < len(look.ranks) or bool(look.missing)
    leaves = ended or any(one.doing is Doing.ENDING for one in left.values())
    slept = seconds(int(min(one.still_s for one in left.values()) * 1e9))
    said = f"suspected: no rank is in a call, and nothing has moved for {slept}: {_each(left)}"
    kind, cause = ("missing_rank", "user_code") if leaves else ("stalled", None)
    return [finding(kind, said, sorted(left), look, cause=cause)]


def _each(ranks: Mapping[int, Stance]) -> str:
    """`ranks 0,1 in its own code at train.py:8 in main`: each place once."""
    places: dict[str, list[int]] = {}
    for rank, one in sorted(ranks.items()):
        doing = "asleep" if is_asleep(one) and one.cause in (None, "user_code") else state(one)
        places.setdefault(f"{doing}{at_site(one.site)}", []).append(rank)
    return "; ".join(f"{ranks_text(who)}: {place}" for place, who in places.items())


def _gone(look: Look, waiting: Mapping[int, Stance], limits: Limits) -> Finding | None:
    ended = sorted({*look.missing, *(r for r, o in look.ranks.items() if o.doing is Doing.GONE)})
    gone = _of_those_waited_for(ended, waiting)
    joining = all(one.doing is Doing.JOIN for one in waiting.values())
    # Ranks may be started one after the other, and who comes last has no process yet. Who dials a
    # store again and again sleeps for a short while each time.
    longest_s = max(one.still_s for one in waiting.values())
    if not gone or (joining and longest_s < limits.still_s and look.age_s < limits.moving_s):
        return None
    # Who is ready first may end first, while others are at work for those that wait.
    late = late_ranks(look.ranks, waiting, limits)
    at_work = [rank for rank in look.ranks if rank not in {*waiting, *gone, *late}]
    if at_work and longest_s < limits.moving_s:
        return None
    left = max(look.world_size, len({*look.ranks, *gone})) - len(gone)
    if left == len(waiting) and all(map(of_anybody, waiting.values())):
        # Nobody is left to send one, and whose message it should have been is not known.
        return finding(
            "unmatched_p2p",
            f"suspected: {who(waiting)}, for a message of anybody, and {ranks_text(gone)}, of all "
            f"others, {verb(gone, 'has', 'have')} no process any more",
            sorted(waiting),
            look,
            missing=tuple(look.missing),
        )
    return finding(
        "join_timeout" if joining else "early_exit",
        f"suspected: {ranks_text(gone)} {verb(gone, 'has', 'have')} no process any more, and "
        f"{who(waiting)}",
        gone,
        look,
        missing=tuple(look.missing),
    )


def _absent(look: Look, waiting: Mapping[int, Stance], limits: Limits) -> Finding | None:
    away = late_ranks(look.ranks, waiting, limits)
    late = _of_those_waited_for(away, waiting)
    others = [one for rank, one in look.ranks.items() if rank not in {*waiting, *away}]
    longest_s = max(one.still_s for one in waiting.values())
    if any(map(is_coming, others)) and longest_s < limits.moving_s:
        # They may wait for that one: for a lock that it holds, a file that it writes, a key.
        late = [rank for rank in late if look.ranks[rank].cause == "stopped"]
    if not late:
        return None
    first = look.ranks[late[0]]
    joining = all(one.doing is Doing.JOIN for one in waiting.values())
    ending = all(look.ranks[rank].doing is Doing.ENDING for rank in late)
    kind = "join_timeout" if joining else "early_exit" if ending else "missing_rank"
    where = f" at {site_text(first.site)}" if first.site is not None else ""
    cause = first.cause if first.cause != "unknown" or kind == "missing_rank" else None
    return finding(
        kind,
        f"suspected: {who(waiting)}, and {ranks_text(late)} {verb(late, 'does', 'do')} not come: "
        f"rank {late[0]} {state(first)}{where}",
        late,
        look,
        cause=cause if kind == "missing_rank" else None,
    )


def _of_those_waited_for(ranks: Sequence[int], waiting: Mapping[int, Stance]) -> list[int]:
    """Those of the ranks that one may wait for."""
    awaited_by = [may_await(one) for one in waiting.values()]
    return [rank for rank in ranks if any(whom is None or rank in whom for whom in awaited_by)]
