"""Puts what the diagnosis finds in a look into words of the stacks, for nothing is known of the
numbers and types of calls. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace

from ..diagnosis.findings import CallIs, Finding, GroupEvidence, RankEvidence
from ..diagnosis.story import step
from ..record.dispute import vote
from ..record.kinds import Family
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
from .look import Look, Stance, is_asleep, is_idle

NOT_IN_RECORD = ("seq", "shape", "dtype", "reduce_op", "splits")


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
    return "computes" if one.running else one.doing.value


def evidence(one: Stance) -> RankEvidence:
    """Returns where a rank stands, as findings have it."""
    return RankEvidence(
        state=state(one),
        call=None if one.call is None else printable(one.call),
        location=one.site,
        stack=tuple(printable(line) for line in one.lines),
    )


def each(ranks: Mapping[int, Stance]) -> str:
    """`ranks 0,1: in its own code at train.py:8 in main`: each place once."""
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
        ranks={
            rank: _evidence_of(found, rank, one, waiting)
            for rank, one in sorted(look.ranks.items())
        },
        details=(),
        headline="",
        difference="",
        cycle=(),
        side="host",
        not_in_record=NOT_IN_RECORD,
    )


def _evidence_of(
    found: Finding, rank: int, one: Stance, waiting: Mapping[int, Stance]
) -> RankEvidence:
    """Returns where the rank stands, or, where ranks went apart, the call with which it did."""
    made = found.ranks.get(rank)
    if made is None or made.call_is is not CallIs.ALL or not went_apart(waiting):
        return evidence(one)
    stood = evidence(one)
    return replace(
        stood, state="made", call=made.call, location=made.location, call_is=CallIs.OBJECT
    )


def went_apart(waiting: Mapping[int, Stance]) -> bool:
    """Whether all wait for handles at one line, and have not made the same calls before it."""
    alike = len({one.site for one in waiting.values()}) == 1
    ways = {tuple(made.op for made in one.way) for one in waiting.values()}
    return alike and len(ways) > 1 and () not in ways


def is_unserved(look: Look, waiting: Mapping[int, Stance]) -> bool:
    """Whether the whole world connects to a store, the rank that should serve it among them, and
    nobody listens there."""
    connecting = all(one.arguments.get("port") for one in waiting.values())
    return bool(look.unserved) and connecting and len(waiting) >= look.world_size > 0


def _culprits(
    found: Finding, waiting: Mapping[int, Stance], ended: Collection[int]
) -> tuple[int, ...]:
    """Returns the culprits of the finding, as far as the stacks can tell them from others."""
    culprits = found.culprits
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
        return f"{who}, and {ranks} {_away(culprits, look)}"
    if kind == "stalled" and is_unserved(look, waiting):
        return f"{who}, and nobody serves the store at {look.unserved}"
    if kind == "stalled":
        return (
            f"everybody waits in the same call, and nothing moves: {who}; the network or a device "
            "stands still, or an argument that no stack shows differs"
        )
    if kind == "invalid_argument":
        return f"{_call(waiting[culprits[0]], culprits)}, and {found.message}"
    if kind == "op_mismatch" and went_apart(waiting):
        return (
            f"nothing moves, {who}, and by source and variables they took other branches before: "
            f"{_parties(waiting, _way)}"
        )
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


def _away(culprits: Sequence[int], look: Look) -> str:
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


def _way(one: Stance, ranks: Sequence[int]) -> str:
    return f"{ranks_text(ranks)} made {', '.join(made.op for made in one.way)}"
