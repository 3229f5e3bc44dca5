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

So what the diagnosis finds is put into words of the stacks (`said`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace

from ..diagnosis.diagnose import diagnose
from ..diagnosis.findings import Finding, GroupEvidence, RankEvidence
from ..diagnosis.limits import Limits as At
from ..diagnosis.story import step
from ..record.dispute import vote
from ..record.kinds import Family
from ..record.snapshot import Snapshot
from ..record.wording import (
    CAUSES,
    RankState,
    at_site,
    printable,
    ranks_text,
    seconds,
    site_text,
    verb,
)
from .as_snapshot import as_snapshot
from .look import Limits, Look, Stance, is_asleep, is_coming, is_idle

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
    if max(waits_s) < limits.moving_s and found.kind == "stalled":
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
    if not others:
        return "all ranks are in calls; nothing is wrong that can be seen"
    idle = [rank for rank in others if is_idle(look.ranks[rank])]
    busy = [rank for rank in others if rank not in idle]
    doing = [f"{ranks_text(busy)} {verb(busy, 'is', 'are')} at work"] if busy else []
    doing += [f"rank {rank} {state(look.ranks[rank])}" for rank in idle]
    return (
        f"{ranks_text(waiting)} {verb(tuple(waiting), 'waits', 'wait')}, while "
        f"{' and '.join(doing)}; nothing is wrong that can be seen"
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


NOT_IN_RECORD = ("seq", "shape", "dtype", "reduce_op", "splits")


_SAID = {RankState.CODE: RankState.RUNS.value, RankState.ENDING: "has left its program"}
"""The words of a report where a sentence needs a verb."""


def state(one: Stance) -> str:
    """Returns what a rank does, in words."""
    if one.cause in CAUSES:
        return CAUSES[one.cause]
    if one.waits:
        return f"waits, for {seconds(int(one.still_s * 1e9))} at least"
    if is_idle(one):
        return f"waits for somebody to connect at {one.serves}"
    if one.doing is RankState.UNREADABLE:
        return f"{one.doing.value}, {'runs' if one.running else 'sleeps'}"
    return "computes" if one.running else _SAID.get(one.doing, one.doing.value)


def evidence(one: Stance) -> RankEvidence:
    """Returns where a rank stands, as findings have it."""
    return RankEvidence(
        state=state(one),
        call=None if one.call is None else printable(one.call),
        location=one.site,
        stack=tuple(printable(line) for line in one.lines),
    )


def each(ranks: Mapping[int, Stance]) -> str:
    """`ranks 0,1: runs user code at train.py:8 in main`: each place once."""
    places: dict[str, list[int]] = {}
    for rank, one in sorted(ranks.items()):
        doing = "asleep" if is_asleep(one) and one.cause in (None, "user_code") else state(one)
        places.setdefault(f"{doing}{at_site(one.site)}", []).append(rank)
    return "; ".join(f"{ranks_text(who)}: {place}" for place, who in places.items())


@step("stacks alone")
def said(
    found: Finding, look: Look, waiting: Mapping[int, Stance], ended: Collection[int]
) -> Finding:
    """Returns what the diagnosis has found in a look, as a suspicion of those that looked."""
    culprits, kind, cause = _culprits(found, waiting, ended), found.kind, None
    leaving = {rank for rank, one in look.ranks.items() if one.doing is RankState.ENDING}
    if waiting and leaving.union(ended).issuperset(culprits):
        kind = "early_exit"  # also in a message: how many they have exchanged is not known
    joining = bool(waiting) and all(one.doing is RankState.JOIN for one in waiting.values())
    if kind in ("missing_rank", "early_exit") and joining:
        kind = "join_timeout"
    first = look.ranks.get(culprits[0])
    if kind == "missing_rank":
        known = first is not None and first.cause not in (None, "unknown")
        cause = first.cause if first is not None and known else found.cause
    if kind == "stalled" and waiting and all(one.group for one in waiting.values()):
        kind = "deadlock"  # what one name stands for on all ranks is not one group
    if kind == "stalled" and is_unserved(look, waiting):
        cause = "rendezvous"
    blamed = set(culprits)
    groups = {one.group for one in look.ranks.values() if one.waits}
    world = tuple(range(look.world_size or max([*look.ranks, *blamed], default=0) + 1))
    return replace(
        found,
        kind=kind,
        message=printable(f"suspected: {_message(found, kind, culprits, look, waiting)}", 1000),
        culprits=culprits,
        victims=tuple(
            rank
            for rank, one in sorted(look.ranks.items())
            if rank not in blamed and (one.waits or one.in_store)
        ),
        missing=tuple(look.missing) if blamed & set(look.missing) else found.missing,
        proven=False,
        cause=cause,
        group=GroupEvidence("0", "default_pg", world) if groups == {""} else None,
        seq=None,
        ranks={rank: evidence(one) for rank, one in sorted(look.ranks.items())},
        details=(),
        headline="",
        difference="",
        cycle=(),
        side="host",
        not_in_record=NOT_IN_RECORD,
    )


def is_unserved(look: Look, waiting: Mapping[int, Stance]) -> bool:
    """Whether the whole world connects to a store, the rank that should serve it among them, and
    nobody listens there."""
    connecting = all(one.arguments.get("port") for one in waiting.values())
    return bool(look.unserved) and connecting and len(waiting) >= look.world_size > 0


def _culprits(
    found: Finding, waiting: Mapping[int, Stance], ended: Collection[int]
) -> tuple[int, ...]:
    """Returns the culprits of the finding, as far as the stacks can tell them from others."""
    culprits = found.culprits or found.missing
    if found.kind == "unmatched_p2p" and ended:
        of_handles = any(waiting[rank].op == "wait" for rank in culprits if rank in waiting)
        return tuple(sorted(ended)) if of_handles else culprits
    if found.kind == "deadlock":
        if any(one.of_unknown(waiting) for one in waiting.values()):
            return tuple(sorted(waiting))  # whose message a handle is of does not show
        in_groups = tuple(sorted(rank for rank, one in waiting.items() if one.group))
        by_message = any(one.doing is RankState.MESSAGE for one in waiting.values())
        if in_groups and not by_message and not _is_sure(culprits, waiting):
            return in_groups if len(in_groups) > 1 else tuple(sorted(waiting))
    if found.kind == "op_mismatch" and not found.victims:
        # Who waits in backward waits for gradients that the others have gone on without.
        beyond = [rank for rank in culprits if waiting[rank].doing is not RankState.BACKWARD]
        return tuple(beyond) or culprits
    if found.kind == "group_mismatch":
        makers = [rank for rank, one in waiting.items() if one.doing is RankState.JOIN]
        if set(makers).isdisjoint(culprits) and len(makers) < len(culprits):
            return tuple(sorted(makers))  # most of them make none
    return culprits


def _is_sure(culprits: Sequence[int], waiting: Mapping[int, Stance]) -> bool:
    """Whether the members of their groups are known well enough to say who waits for whom: it is
    so where some rank is known not to be in a group."""
    groups = {waiting[rank].group for rank in culprits} - {"", None}
    known = {name for one in waiting.values() for name in one.not_in}
    return groups <= known


def _message(
    found: Finding, kind: str, culprits: Sequence[int], look: Look, waiting: Mapping[int, Stance]
) -> str:
    if not waiting:  # they sleep, or wait for the store
        return found.message.removeprefix("suspected: ")
    ranks, who = ranks_text(culprits), _who(waiting)
    if look.twice:
        return f"two processes say that they are {ranks}, and {who}"
    if found.cause == "elsewhere":
        return f"{who}, but not at one store: {_parties(waiting, _store)}"
    if kind == "unmatched_p2p":
        return f"{who}, for a message of anybody, and all others have no process any more"
    if found.about.family is Family.ABSENCE and kind != "stalled":
        return f"{who}, and {ranks} {_instead(culprits, look)}"
    if kind == "stalled" and is_unserved(look, waiting):
        return f"{who}, and nobody serves the store at {look.unserved}"
    if kind == "stalled":
        return (
            f"everybody waits in the same call, and nothing moves: {who}; the network or a device "
            "stands still, or an argument that no stack shows differs"
        )
    if kind == "invalid_argument":
        return f"{_call(waiting[culprits[0]], culprits)}, and {found.message}"
    what = "ranks wait in different calls"
    if kind == "group_mismatch":
        what = "ranks do not make the same groups"
    elif kind == "p2p_mismatch":
        what = "ranks wait in messages whose tags differ"
    elif kind == "deadlock":
        what = "ranks wait for each other in a cycle"
        unknown = any(one.of_unknown(waiting) for one in waiting.values())
        if unknown or set(culprits) != set(found.culprits):
            what = "everybody waits, and nobody is absent, but whom each waits for no stack shows"
    return f"{what}: {_parties(waiting, _call)}"


def _instead(culprits: Sequence[int], look: Look) -> str:
    """`has no process any more`, or what the first of them does instead of coming."""
    first = look.ranks.get(culprits[0])
    if first is None and culprits[0] in look.never_came:
        return f"{verb(culprits, 'has', 'have')} not come: the job's store does not know them"
    if first is None or first.doing is RankState.GONE:
        return f"{verb(culprits, 'has', 'have')} no process any more"
    come = verb(culprits, "does", "do")
    return f"{come} not come: rank {culprits[0]} {state(first)}{at_site(first.site)}"


def _who(waiting: Mapping[int, Stance]) -> str:
    """`ranks 0,1,3 wait in all_reduce() at train.py:88 in step, for 312 s`."""
    longest = max(waiting.values(), key=lambda one: one.still_s)
    return f"{_call(longest, sorted(waiting))}, for {seconds(int(longest.still_s * 1e9))}"


def _parties(waiting: Mapping[int, Stance], told: Callable[[Stance, Sequence[int]], str]) -> str:
    """Returns what is told of each, once for ranks of which it is the same; the largest party comes
    first."""
    parties: dict[Hashable, list[int]] = {}
    for rank, one in waiting.items():
        parties.setdefault(told(one, ()), []).append(rank)
    return "; ".join(
        told(waiting[ranks[0]], ranks) for _, ranks in vote(parties, still_to_come=0).parties
    )


def _call(one: Stance, ranks: Sequence[int]) -> str:
    where = f" at {site_text(one.site)}" if one.site is not None else ""
    return f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in {one.call}{where}"


def _store(one: Stance, ranks: Sequence[int]) -> str:
    return f"{ranks_text(ranks)} at port {one.arguments.get('port', '?')}"
