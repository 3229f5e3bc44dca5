"""Tells which ranks are on nodes that have fallen silent, be it that a node was lost before it
told.

Rules, for the ranks of the newest world that nobody has told of:
1. A node owes ranks if it has told of fewer than it starts; where nobody has said how many it
   starts, if it has told of none. One whose command has ended owes nothing.
2. They are on the lost nodes that owe ranks, where no other node does, and either all nodes of the
   job have come, or these nodes owe just as many. Which of them is on which node is not known.
3. Else a lost node that has told of none has some of them in a job that has as many nodes from its
   beginning to its end, and nobody knows which; in an elastic job it may be in no world at all.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...node_links.several import Several
from ...record.snapshot import LostNode

if TYPE_CHECKING:
    from .head import Head  # with it comes ZeroMQ, which a run on one node does without


@dataclass(frozen=True, slots=True)
class Lost:
    """`nodes`: those that have, or had, ranks. `doubtful`: the hosts of others, of which nobody can
    tell whether any of the unseen ranks are on them."""

    nodes: tuple[LostNode, ...] = ()
    doubtful: tuple[str, ...] = ()


def lost_nodes(
    head: Head, several: Several, told: Mapping[int, Sequence[int]], unseen: Collection[int]
) -> Lost:
    """Returns the lost nodes of this job. `told`: the ranks of the newest world by the number of
    the node that has told of them (0: the head's own), `unseen`: those of which none has."""
    lost = {
        far.number: LostNode(far.host, far.lost_ns, tuple(told.get(far.number, ())))
        for far in head.nodes.values()
        if far.lost_ns
    }
    if head.given_up_ns:
        lost[0] = LostNode(socket.gethostname(), head.given_up_ns, tuple(told.get(0, ())))
    owed = _owed(head, several, told)
    owing = [node for number, node in lost.items() if number in owed]
    have = tuple(one for one in lost.values() if one.ranks)
    if not owing or not unseen:
        return Lost(have)
    came, fixed = len(head.nodes) + 1, several.fewest == several.most
    counts = [owed[number] for number in lost if number in owed]
    as_many = all(counts) and sum(counts) == len(unseen)
    if owed.keys() <= lost.keys() and (as_many or (fixed and came == several.most)):
        others = (one for one in have if one not in owing)
        return Lost((*others, _together(owing, unseen)))
    without = [one for one in owing if not one.ranks]
    if fixed and came <= several.most:
        return Lost((*have, *without))
    return Lost(have, tuple(one.host for one in without))


def _owed(head: Head, several: Several, told: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Returns by node how many ranks it owes, if any; 0: that number is not known."""
    starts = {0: several.ranks}
    starts |= {one.number: one.starts for one in head.nodes.values() if not (one.over or one.left)}
    found = {}
    for number, count in starts.items():
        has = len(told.get(number, ()))
        if has < (count or 1):
            found[number] = count - has if count else 0
    return found


def _together(nodes: Sequence[LostNode], unseen: Collection[int]) -> LostNode:
    ranks = {rank for one in nodes for rank in one.ranks}
    hosts = tuple(dict.fromkeys(one.host for one in nodes))
    heard_ns = min(one.heard_ns for one in nodes)
    return LostNode(hosts[0], heard_ns, tuple(sorted({*ranks, *unseen})), hosts[1:])
