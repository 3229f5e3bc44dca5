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

Nothing is proven: a stack has no sequence numbers, shapes, dtypes or reduce ops.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ..diagnosis.findings import Finding, GroupEvidence
from ..record.majority import Vote, vote
from ..record.wording import printable, ranks_text, seconds, site_text, verb
from .awaiting import awaited, cycle_in, is_unknown, of_anybody, peer_of, sends
from .in_store import all_in_store, in_store
from .lateness import Limits, is_coming, is_idle, late_ranks
from .stance import Doing, Stance
from .words import evidence, state

NOT_IN_RECORD = ("seq", "shape", "dtype", "reduce_op", "splits")
_TOLD_BY_JOINS = ("ranks", "group_name")
_MAKE_SEVERAL = {"init_device_mesh", "new_subgroups", "new_subgroups_by_enumeration"}


@dataclass(frozen=True, slots=True)
class Look:
    """The ranks of a job on this host. `missing` should be here and have no process; `twice` are
    claimed by two processes; `never_came` have not come into the default group, by the job's store.
    `world_size` is 0 where nobody tells. `unserved`: where the job's store should be, and nobody
    listens. `age_s`: since the youngest of them was started."""

    ranks: Mapping[int, Stance]
    missing: tuple[int, ...] = ()
    twice: tuple[int, ...] = ()
    never_came: tuple[int, ...] = ()
    world_size: int = 0
    unserved: str = ""
    age_s: float = 0.0


def judge(look: Look, limits: Limits) -> list[Finding]:
    """The finding, if there is one."""
    waiting = {rank: one for rank, one in look.ranks.items() if one.waits}
    longest_s = max((one.still_s for one in waiting.values()), default=0.0)
    if not waiting and (said := all_in_store(look.ranks, look.world_size, limits.busy_s)):
        return [_finding("missing_rank", said, sorted(look.ranks), look, cause="store")]
    if not waiting and any(map(in_store, look.ranks.values())):
        return _beside_store(look, limits)
    if not waiting or longest_s < limits.waiting_s:
        return []
    found = _twice(look, waiting) or _gone(look, waiting, limits) or _absent(look, waiting, limits)
    if found is None and len(waiting) == len(look.ranks) and _all_wait(waiting, limits.waiting_s):
        found = (
            _messages(look, waiting, limits)
            or _unserved(look, waiting)
            or _elsewhere(look, waiting)
            or _groups(look, waiting)
            or _calls(look, waiting)
            or _sub_groups(look, waiting, longest_s, limits)
            or _stalled(look, waiting, longest_s, limits)
        )
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
        return "all ranks are computing; nothing is wrong that can be seen"
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
    return _finding(
        "join_timeout",
        f"suspected: two processes say that they are {ranks_text(look.twice)}, and {_who(waiting)}",
        look.twice,
        look,
    )


def _gone(look: Look, waiting: Mapping[int, Stance], limits: Limits) -> Finding | None:
    gone = sorted({*look.missing, *(r for r, o in look.ranks.items() if o.doing is Doing.GONE)})
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
        return _finding(
            "unmatched_p2p",
            f"suspected: {_who(waiting)}, for a message of anybody, and {ranks_text(gone)}, of all "
            f"others, {verb(gone, 'has', 'have')} no process any more",
            sorted(waiting),
            look,
            missing=tuple(look.missing),
        )
    return _finding(
        "join_timeout" if joining else "early_exit",
        f"suspected: {ranks_text(gone)} {verb(gone, 'has', 'have')} no process any more, and "
        f"{_who(waiting)}",
        gone,
        look,
        missing=tuple(look.missing),
    )


def _absent(look: Look, waiting: Mapping[int, Stance], limits: Limits) -> Finding | None:
    late = late_ranks(look.ranks, waiting, limits)
    coming = [one for rank, one in look.ranks.items() if rank not in {*waiting, *late}]
    if (
        any(map(is_coming, coming))
        and max(one.still_s for one in waiting.values()) < limits.moving_s
    ):
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
    return _finding(
        kind,
        f"suspected: {_who(waiting)}, and {ranks_text(late)} {verb(late, 'does', 'do')} not come: "
        f"rank {late[0]} {state(first)}{where}",
        late,
        look,
        cause=cause if kind == "missing_rank" else None,
    )


def _all_wait(waiting: Mapping[int, Stance], for_s: float) -> bool:
    return all(one.still_s >= for_s for one in waiting.values())


def _messages(look: Look, waiting: Mapping[int, Stance], limits: Limits) -> Finding | None:
    talking = {rank for rank, one in waiting.items() if one.doing is Doing.MESSAGE}
    if not talking:
        return None
    for rank in sorted(talking):
        peer = peer_of(waiting[rank])
        if peer is not None and 0 < look.world_size <= peer:
            return _finding(
                "invalid_argument",
                f"suspected: {_at(rank, waiting)}, and there is no rank {peer} in a world of "
                f"{look.world_size}",
                [rank],
                look,
            )
        other = waiting.get(peer) if peer is not None else None
        if other is None or peer_of(other) != rank or sends(waiting[rank]) == sends(other):
            continue
        tags = (waiting[rank].number("tag") or 0, other.number("tag") or 0)
        if tags[0] != tags[1]:
            pair = sorted((rank, peer or 0))
            return _finding(
                "p2p_mismatch",
                f"suspected: {_at(rank, waiting)} with tag {tags[0]}, and "
                f"{_at(peer or 0, waiting)} with tag {tags[1]}",
                pair,
                look,
            )
    cycle = cycle_in({rank: awaited(rank, waiting) for rank in sorted(waiting)})
    to_each_other = any(
        rank in waiting[peer].peers
        for rank in sorted(talking)
        for peer in waiting[rank].peers
        if peer in waiting
    )
    if not cycle:
        # They may be under way, or not be the ones that the other waits for.
        late = to_each_other and _all_wait(waiting, limits.busy_s)
        return _unknown_peers(look, waiting) if late else None
    if any(is_unknown(one) or len(one.peers) > 1 for one in map(waiting.__getitem__, cycle)):
        return _unknown_peers(look, waiting)
    steps = [f"{_at(rank, waiting)}" for rank in cycle]
    return _finding(
        "deadlock",
        f"suspected: ranks wait for each other in a cycle: {'; '.join(steps)}",
        cycle,
        look,
        details=steps,
    )


def _unknown_peers(look: Look, waiting: Mapping[int, Stance]) -> Finding:
    """A handle does not show on a stack whose message it is: who waits for whom is not known."""
    parties = _vote({rank: (one.op, one.site) for rank, one in waiting.items()})
    return _finding(
        "deadlock",
        "suspected: everybody waits, for messages too, whose peers no stack shows, and nobody is "
        f"absent: {_calls_of(parties, waiting)}",
        sorted(waiting),
        look,
    )


def _unserved(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    """The whole world connects to a store, the rank that should serve it among them."""
    connecting = all(_store_of(one) for one in waiting.values())
    if not look.unserved or not connecting or len(waiting) < (look.world_size or len(waiting) + 1):
        return None
    return _finding(
        "stalled",
        f"suspected: {_who(waiting)}, and nobody serves the store at {look.unserved}",
        sorted(waiting),
        look,
        cause="rendezvous",
    )


def _elsewhere(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    """Everybody here makes the default group, and of others the store has not heard."""
    away = tuple(rank for rank in look.never_came if rank not in look.ranks)
    if not away or any(one.op != "init_process_group" for one in waiting.values()):
        return None
    return _finding(
        "join_timeout",
        f"suspected: {_who(waiting)}, and {ranks_text(away)} {verb(away, 'has', 'have')} not come: "
        "the job's store does not know them",
        away,
        look,
        missing=away,
    )


def _groups(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    joining = [rank for rank, one in waiting.items() if one.doing is Doing.JOIN]
    if not joining or any(one.op == "TCPStore" for one in waiting.values()):
        return None  # nobody there has a group in hand
    at_stores = {rank: at for rank in joining if (at := _store_of(waiting[rank]))}
    if len(set(at_stores.values())) > 1:
        stores = _vote(at_stores)
        at = "; ".join(f"{ranks_text(ranks)} at {store}" for store, ranks in stores.parties)
        return _finding(
            "join_timeout",
            f"suspected: {_who(waiting)}, but not at one store: {at}",
            stores.culprits,
            look,
        )
    made = _made_at_one_line(joining, waiting) or {
        rank: _made_by(waiting[rank]) if rank in joining else "other" for rank in waiting
    }
    voted = _vote(made)
    if len(voted.parties) < 2:
        voted = _vote({rank: _told_by(one) for rank, one in waiting.items()})
    if len(voted.parties) < 2:
        return None
    return _finding(
        "group_mismatch",
        f"suspected: ranks do not make the same groups: {_calls_of(voted, waiting)}",
        voted.culprits,
        look,
    )


def _made_at_one_line(
    joining: Sequence[int], waiting: Mapping[int, Stance]
) -> dict[int, Hashable] | None:
    """The ranks of the group that each has made at the line where some still make theirs: a call
    that went on from there may have met members of other groups. None where one is not known."""
    sites = {waiting[rank].site for rank in joining}
    if len(sites) > 1 or None in sites:
        return None
    (site,) = sites
    assert site is not None
    here = {
        rank: one.made.get(site.line)
        for rank, one in waiting.items()
        if one.site is not None and (one.site.file, one.site.function) == (site.file, site.function)
    }
    known = {rank: ranks for rank, ranks in here.items() if ranks is not None}
    return dict(known) if known.keys() == waiting.keys() else None


def _made_by(one: Stance) -> Hashable:
    """What ranks that make the same groups have in common: of those that make several at once, and
    are each in others of them, no more than how."""
    name = (one.call or "").partition("(")[0]
    return name if name in _MAKE_SEVERAL else _told_by(one)


def _told_by(one: Stance) -> Hashable:
    return tuple(one.arguments.get(name, "") for name in _TOLD_BY_JOINS)


def _calls(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    """Of the ranks whose call is of one group: those that stand in another call than most."""
    by_group: dict[str, dict[int, Stance]] = {}
    for rank, one in waiting.items():
        if one.doing is Doing.MESSAGE or one.op == "TCPStore":
            continue  # the host of a store stands on the way to the call of the others
        group = one.group if one.doing is Doing.COLLECTIVE else ""
        by_group.setdefault(group or "", {})[rank] = one  # not known: most calls are the world's
    for members in sorted(by_group.values(), key=len):
        voted = _vote({rank: one.op for rank, one in members.items()})
        kind = "op_mismatch"
        if len(voted.parties) < 2:
            voted = _vote(
                {
                    rank: tuple(one.number(name) for name in ("src", "dst"))
                    for rank, one in members.items()
                }
            )
            kind = "root_mismatch"
        if len(voted.parties) < 2:
            continue
        culprits = voted.culprits
        if len(culprits) == len(members):
            # No more on one side than on the other: who waits in backward waits for gradients that
            # the others have gone on without.
            beyond = [rank for rank in culprits if members[rank].doing is not Doing.BACKWARD]
            culprits = tuple(beyond) or culprits
        return _finding(
            kind,
            f"suspected: ranks wait in different calls: {_calls_of(voted, members)}",
            culprits,
            look,
        )
    return None


def _sub_groups(
    look: Look, waiting: Mapping[int, Stance], longest_s: float, limits: Limits
) -> Finding | None:
    """No call of a sub-group can wait for long where no member is absent: unless its members
    stand in calls of other groups. Where all stand at one line with one name for their groups, that
    may be one group, and the call be under way: threads that have a group each look like that."""
    in_groups = [rank for rank, one in waiting.items() if one.group]
    calls = _vote({rank: (one.group, one.op, one.site) for rank, one in waiting.items()})
    if not in_groups or (len(calls.parties) < 2 and longest_s < limits.moving_s):
        return None
    if all(waiting[rank].members for rank in in_groups):
        cycle = cycle_in({rank: awaited(rank, waiting) for rank in sorted(waiting)})
        in_groups = cycle or in_groups
    return _finding(
        "deadlock",
        "suspected: everybody waits in calls of groups, and nobody is absent: groups wait for "
        f"each other: {_calls_of(calls, waiting)}",
        in_groups if len(in_groups) > 1 else sorted(waiting),
        look,
    )


def _stalled(
    look: Look, waiting: Mapping[int, Stance], longest_s: float, limits: Limits
) -> Finding | None:
    if longest_s < limits.moving_s:
        return None
    ranks = sorted(waiting)
    return _finding(
        "stalled",
        f"suspected: everybody waits in the same call, and nothing moves: {_who(waiting)}; the "
        "network or a device stands still, or an argument that no stack shows differs",
        ranks,
        look,
    )


# -- what the rules share -----------------------------------------------------------------------


def _finding(
    kind: str,
    message: str,
    culprits: Sequence[int],
    look: Look,
    cause: str | None = None,
    missing: tuple[int, ...] = (),
    details: Sequence[str] = (),
) -> Finding:
    blamed = set(culprits)
    waiting = tuple(
        rank
        for rank, one in sorted(look.ranks.items())
        if rank not in blamed and (one.waits or in_store(one))
    )
    world = tuple(range(look.world_size or max([*look.ranks, *blamed], default=0) + 1))
    groups = {look.ranks[rank].group for rank in look.ranks if look.ranks[rank].waits}
    return Finding(
        kind=kind,
        message=printable(message, 1000),
        culprits=tuple(culprits),
        victims=waiting,
        missing=missing,
        proven=False,
        cause=cause,
        group=GroupEvidence("0", "default_pg", world) if groups == {""} else None,
        ranks={rank: evidence(one) for rank, one in sorted(look.ranks.items())},
        details=details,
        side="host",
        not_in_record=NOT_IN_RECORD,
    )


def _who(waiting: Mapping[int, Stance]) -> str:
    """`ranks 0,1,3 wait in all_reduce() at train.py:88 in step, for 312 s`."""
    longest = max(waiting, key=lambda rank: waiting[rank].still_s)
    one = waiting[longest]
    ranks = tuple(sorted(waiting))
    where = f" at {site_text(one.site)}" if one.site is not None else ""
    return (
        f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in {one.call}{where}, for "
        f"{seconds(int(one.still_s * 1e9))}"
    )


def _at(rank: int, waiting: Mapping[int, Stance], ranks: Sequence[int] = ()) -> str:
    one = waiting[rank]
    who = ranks_text(ranks or [rank])
    where = f" at {site_text(one.site)}" if one.site is not None else ""
    return f"{who} {verb(ranks or [rank], 'waits', 'wait')} in {one.call}{where}"


def _store_of(one: Stance) -> str:
    """Where it waits for the job's store to have everybody; "" where it does not."""
    port = one.arguments.get("port", "")
    return f"port {port}" if port else ""


def _vote(of: Mapping[int, Hashable]) -> Vote[Hashable]:
    """Which ranks are the same: the largest party first."""
    parties: dict[Hashable, list[int]] = {}
    for rank, what in of.items():
        parties.setdefault(what, []).append(rank)
    return vote(parties, still_to_come=0)


def _calls_of(voted: Vote[Hashable], waiting: Mapping[int, Stance]) -> str:
    """In which call each party waits."""
    return "; ".join(_at(ranks[0], waiting, ranks) for _, ranks in voted.parties)
