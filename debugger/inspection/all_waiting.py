"""What is suspected where no rank is gone or absent: rules 3 to 7 of `judging`. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from ..diagnosis.findings import CallIs, Finding, RankEvidence
from ..record.wording import ranks_text, verb
from .awaiting import awaited, cycle_in, is_unknown, peer_of, sends
from .lateness import Limits
from .stance import Doing, Stance
from .suspicions import Look, at, calls_of, finding, vote_of, who
from .words import evidence

_TOLD_BY_JOINS = ("ranks", "group_name")
_MAKE_SEVERAL = {"init_device_mesh", "new_subgroups", "new_subgroups_by_enumeration"}


def all_waiting(look: Look, waiting: Mapping[int, Stance], limits: Limits) -> Finding | None:
    """What all ranks that wait let one suspect."""
    longest_s = max(one.still_s for one in waiting.values())
    found = None
    if _all_wait(waiting, limits.waiting_s):
        found = _unserved(look, waiting) or _at_other_stores(look, waiting)
    if found is None and _all_wait(waiting, limits.still_s, spins_s=limits.waiting_s):
        found = (
            _messages(look, waiting, limits)
            or _elsewhere(look, waiting, longest_s, limits)
            or _groups(look, waiting)
            or _calls(look, waiting)
            or _sub_groups(look, waiting, longest_s, limits)
            or _stalled(look, waiting, longest_s, limits)
        )
    return found


def _all_wait(waiting: Mapping[int, Stance], for_s: float, spins_s: float = math.inf) -> bool:
    """`spins_s`: so long is enough of who waits on a core, of which no look shows since when."""
    return all(
        one.still_s >= (min(for_s, spins_s) if one.running else for_s) for one in waiting.values()
    )


def _messages(look: Look, waiting: Mapping[int, Stance], limits: Limits) -> Finding | None:
    talking = {rank for rank, one in waiting.items() if one.doing is Doing.MESSAGE}
    if not talking:
        return None
    for rank in sorted(talking):
        peer = peer_of(waiting[rank])
        if peer is not None and 0 < look.world_size <= peer:
            return finding(
                "invalid_argument",
                f"suspected: {at(rank, waiting)}, and there is no rank {peer} in a world of "
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
            return finding(
                "p2p_mismatch",
                f"suspected: {at(rank, waiting)} with tag {tags[0]}, and "
                f"{at(peer or 0, waiting)} with tag {tags[1]}",
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
    steps = [f"{at(rank, waiting)}" for rank in cycle]
    return finding(
        "deadlock",
        f"suspected: ranks wait for each other in a cycle: {'; '.join(steps)}",
        cycle,
        look,
        details=steps,
    )


def _unknown_peers(look: Look, waiting: Mapping[int, Stance]) -> Finding:
    """A handle does not show on a stack whose message it is: who waits for whom is not known."""
    parties = vote_of({rank: (one.op, one.site) for rank, one in waiting.items()})
    return finding(
        "deadlock",
        "suspected: everybody waits, for messages too, whose peers no stack shows, and nobody is "
        f"absent: {calls_of(parties, waiting)}",
        sorted(waiting),
        look,
    )


def _unserved(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    """The whole world connects to a store, the rank that should serve it among them."""
    connecting = all(_store_of(one) for one in waiting.values())
    if not look.unserved or not connecting or len(waiting) < (look.world_size or len(waiting) + 1):
        return None
    return finding(
        "stalled",
        f"suspected: {who(waiting)}, and nobody serves the store at {look.unserved}",
        sorted(waiting),
        look,
        cause="rendezvous",
    )


def _elsewhere(
    look: Look, waiting: Mapping[int, Stance], longest_s: float, limits: Limits
) -> Finding | None:
    """Everybody here makes the default group, and of others the store has not heard: of nodes that
    start later, too."""
    if longest_s < limits.moving_s:
        return None
    away = tuple(rank for rank in look.never_came if rank not in look.ranks)
    if not away or any(one.op != "init_process_group" for one in waiting.values()):
        return None
    return finding(
        "join_timeout",
        f"suspected: {who(waiting)}, and {ranks_text(away)} {verb(away, 'has', 'have')} not come: "
        "the job's store does not know them",
        away,
        look,
        missing=away,
    )


def _at_other_stores(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    at_stores = {rank: at for rank in _joining(waiting) if (at := _store_of(waiting[rank]))}
    if len(set(at_stores.values())) < 2:
        return None
    stores = vote_of(at_stores)
    at = "; ".join(f"{ranks_text(ranks)} at {store}" for store, ranks in stores.parties)
    return finding(
        "join_timeout",
        f"suspected: {who(waiting)}, but not at one store: {at}",
        stores.culprits,
        look,
    )


def _joining(waiting: Mapping[int, Stance]) -> list[int]:
    """Who makes a group; nobody where a store is made: nobody there has a group in hand."""
    if any(one.op == "TCPStore" for one in waiting.values()):
        return []
    return [rank for rank, one in waiting.items() if one.doing is Doing.JOIN]


def _groups(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    joining = _joining(waiting)
    if not joining:
        return _made_apart(look, waiting)
    made = _made_at_one_line(joining, waiting) or {
        rank: _made_by(waiting[rank]) if rank in joining else "other" for rank in waiting
    }
    voted = vote_of(made)
    if len(voted.parties) < 2:
        voted = vote_of({rank: _told_by(one) for rank, one in waiting.items()})
    if len(voted.parties) < 2:
        return None
    return finding(
        "group_mismatch",
        f"suspected: ranks do not make the same groups: {calls_of(voted, waiting)}",
        voted.culprits,
        look,
    )


def _made_apart(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    """All have gone on from a line at which each has made a group of other ranks: those that met
    there wait for different peers now."""
    functions = {one.site and (one.site.file, one.site.function) for one in waiting.values()}
    lines = set.intersection(*(set(one.made) for one in waiting.values()))
    for line in sorted(lines) if len(functions) == 1 else ():
        voted = vote_of({rank: one.made[line] for rank, one in waiting.items()})
        if len(voted.parties) > 1:
            told = "; ".join(f"{ranks_text(ranks)} that of {of}" for of, ranks in voted.parties)
            return finding(
                "group_mismatch",
                f"suspected: {who(waiting)}, and at line {line} ranks have not made the same "
                f"group: {told}",
                voted.culprits,
                look,
            )
    return None


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
        voted = vote_of({rank: one.op for rank, one in members.items()})
        kind = "op_mismatch"
        if len(voted.parties) < 2:
            voted = vote_of(
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
        return finding(
            kind,
            f"suspected: ranks wait in different calls: {calls_of(voted, members)}",
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
    calls = vote_of({rank: (one.group, one.op, one.site) for rank, one in waiting.items()})
    if not in_groups or (len(calls.parties) < 2 and longest_s < limits.moving_s):
        return None
    if all(waiting[rank].members for rank in in_groups):
        cycle = cycle_in({rank: awaited(rank, waiting) for rank in sorted(waiting)})
        in_groups = cycle or in_groups
    return finding(
        "deadlock",
        "suspected: everybody waits in calls of groups, and nobody is absent: groups wait for "
        f"each other: {calls_of(calls, waiting)}",
        in_groups if len(in_groups) > 1 else sorted(waiting),
        look,
    )


def _stalled(
    look: Look, waiting: Mapping[int, Stance], longest_s: float, limits: Limits
) -> Finding | None:
    if longest_s < limits.moving_s:
        return None
    ranks = sorted(waiting)
    if (differ := _other_branches(look, waiting)) is not None:
        return differ
    return finding(
        "stalled",
        f"suspected: everybody waits in the same call, and nothing moves: {who(waiting)}; the "
        "network or a device stands still, or an argument that no stack shows differs",
        ranks,
        look,
    )


def _other_branches(look: Look, waiting: Mapping[int, Stance]) -> Finding | None:
    """All wait for a handle at one line, and have not made the same calls before it."""
    ways = vote_of({rank: _ops(one) for rank, one in waiting.items()})
    sites = {one.site for one in waiting.values()}
    if len(ways.parties) < 2 or len(sites) > 1 or not all(one.way for one in waiting.values()):
        return None
    told = "; ".join(
        f"{ranks_text(ranks)} made {', '.join(_ops(waiting[ranks[0]]))}"
        for _, ranks in ways.parties
    )
    found = finding(
        "op_mismatch",
        f"suspected: nothing moves, {who(waiting)}, and by source and variables they took other "
        f"branches before: {told}",
        ways.culprits,
        look,
    )
    return replace(found, ranks={**found.ranks, **_first_that_differ(waiting)})


def _first_that_differ(waiting: Mapping[int, Stance]) -> dict[int, RankEvidence]:
    """The calls at which the ways of the ranks part; of a rank that has made no more, nothing."""
    first = next(
        index
        for index, ops in enumerate(zip_longest(*(_ops(one) for one in waiting.values())))
        if len(set(ops)) > 1
    )
    found = {}
    for rank, one in waiting.items():
        if one.site is not None and first < len(one.way):
            op, line = one.way[first]
            site = replace(one.site, line=line)
            stood = evidence(one)
            found[rank] = replace(
                stood, state="made", call=f"{op}()", location=site, call_is=CallIs.OBJECT
            )
    return found


def _ops(one: Stance) -> tuple[str, ...]:
    return tuple(made.op for made in one.way)


def _store_of(one: Stance) -> str:
    """Where it waits for the job's store to have everybody; "" where it does not."""
    port = one.arguments.get("port", "")
    return f"port {port}" if port else ""
