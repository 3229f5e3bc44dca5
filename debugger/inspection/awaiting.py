"""Which ranks a rank waits for, by what its stack and its source show: the other end of a message,
or who does not stand in the same collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .stance import Doing, Stance


def peer_of(one: Stance) -> int | None:
    """The other end of the message that it stands in; None of anything else."""
    if one.doing is not Doing.MESSAGE:
        return None
    names = ("dst", "group_dst") if sends(one) else ("src", "group_src")
    return next((peer for name in names if (peer := one.number(name)) is not None), None)


def is_unknown(one: Stance) -> bool:
    """Whether it waits for a message of which no stack and no source shows whose it is."""
    return one.doing is Doing.MESSAGE and peer_of(one) is None and not one.peers


def of_anybody(one: Stance) -> bool:
    """Whether it stands in a receive that takes the message of whoever sends one."""
    return one.op == "recv" and is_unknown(one)


def sends(one: Stance) -> bool:
    """Of a rank that stands in a message: whether it is a send."""
    return "send" in one.op


def awaited(rank: int, waiting: Mapping[int, Stance]) -> list[int]:
    """For whom this rank waits: its peer, or who is not in the same collective."""
    one = waiting[rank]
    if one.peers:
        # Of two that wait for handles of messages to each other, nobody knows which those are.
        return [peer for peer in one.peers if peer in waiting and not waiting[peer].peers]
    if one.doing is Doing.MESSAGE:
        peer = peer_of(one)
        if peer is None:
            return [other for other in sorted(waiting) if other != rank]
        there = waiting.get(peer)
        faces = there is not None and peer_of(there) == rank and sends(there) != sends(one)
        return [] if faces else [peer]  # two ends of one message are under way
    return [
        other
        for other, stance in sorted(waiting.items())
        if other != rank
        and (one.members is None or other in one.members)
        and (stance.op, stance.group) != (one.op, one.group)
    ]


def may_await(one: Stance) -> frozenset[int] | None:
    """The ranks that this one may wait for, where its stack or its source tells; None where it may
    be any."""
    peer = peer_of(one)
    if peer is not None:
        return frozenset((peer,))
    if one.doing is Doing.MESSAGE and one.peers:
        return frozenset(one.peers)
    if one.doing is Doing.COLLECTIVE and one.members is not None:
        return frozenset(one.members)
    return None


def cycle_in(onward: Mapping[int, Sequence[int]]) -> list[int]:
    """The shortest cycle through the lowest rank that is in one; empty where there is none."""
    for start in onward:
        paths = [[start]]
        seen = {start}
        while paths:
            longer = []
            for path in paths:
                for peer in onward.get(path[-1], ()):
                    if peer == start:
                        return path
                    if peer not in seen:
                        seen.add(peer)
                        longer.append([*path, peer])
            paths = longer
    return []
