"""Which thread counts of each rank, where several of each communicate. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .stance import Stance


def of_one_kind(
    stances: Mapping[int, Stance], threads: Mapping[int, Sequence[Stance]]
) -> dict[int, Stance]:
    """The stances of the threads that wait for each other: `stances` are what was taken for each
    rank, `threads` are all but its main one.

    Threads that began with one function are each other's peers. Where a rank waits in such a
    thread, its peer on another rank tells whom it waits for, and not what else that rank does;
    unless a rank has several of them, or its main thread waits in a call itself.
    """
    waiting = [one for one in stances.values() if one.waits and one.thread]
    if not waiting:
        return dict(stances)
    kind = max(waiting, key=lambda one: one.still_s).thread
    peers = {rank: [one for one in threads[rank] if one.thread == kind] for rank in stances}
    if any(len(of_rank) > 1 for of_rank in peers.values()):
        return dict(stances)
    return {
        rank: peers[rank][0] if peers[rank] and (one.thread or not one.waits) else one
        for rank, one in stances.items()
    }
