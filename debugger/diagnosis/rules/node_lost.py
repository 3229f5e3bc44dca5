"""A node of the job fell silent: its supervisor, its network or its power.

Rules:
1. Its ranks that had not ended are the culprits, from the moment at which it was heard last. Where
   nobody knows which these are, it is said a little later: others may tell of theirs by then.
2. What others say of those ranks afterwards (connections closed, waits) follows from it.
3. A node that left in good order is not lost; nor is one whose ranks had all ended.
"""

from __future__ import annotations

from ...record.snapshot import LostNode
from ...record.wording import printable, ranks_text, verb
from ..facts.evidence import chosen, stand
from ..facts.world import World
from ..findings import Finding
from ..limits import UNKNOWN_NS, Candidate
from ..story import rule


def lost_nodes(world: World) -> list[Candidate]:
    """Returns one finding for each host: where each rank has a supervisor, as under mpiexec, all
    that were on the host are lost with it."""
    found = []
    # The lost nodes of one host are one; a node without a name stays apart: its host is not known.
    hosts: dict[tuple[str, ...], LostNode] = {}
    for place, one in enumerate(world.snapshot.lost):
        key = (one.host or f"/{place}", *one.others)
        other = hosts.get(key, one)
        both = tuple(sorted({*other.ranks, *one.ranks}))
        heard_ns = min(other.heard_ns, one.heard_ns)
        hosts[key] = LostNode(one.host, heard_ns, both, one.others)
    for node in hosts.values():
        ranks = tuple(rank for rank in node.ranks if not world.finished(rank))
        if node.ranks and not ranks:
            continue
        others = tuple(sorted(set(world.ranks) - set(ranks)))
        finding = Finding(
            kind="node_lost",
            message=_message(node, ranks),
            culprits=ranks,
            victims=others,
            ranks=stand(world, chosen(ranks, others)),
            observable_ns=node.heard_ns,
            data={"host": printable(node.host, 120)},
        )
        found.append(Candidate(finding, 0 if ranks else node.heard_ns + UNKNOWN_NS))
    return found


@rule
def lost_without_ranks(node: LostNode) -> Finding:
    """The same of a node of whose ranks nothing is known here but their numbers."""
    return Finding(
        kind="node_lost",
        message=_message(node, node.ranks),
        culprits=node.ranks,
        observable_ns=node.heard_ns,
        data={"host": printable(node.host, 120)},
    )


def _message(node: LostNode, ranks: tuple[int, ...]) -> str:
    hosts = [printable(host, 120) or "a node" for host in (node.host, *node.others)]
    text = f"{hosts[0]} has fallen silent: its power, its network or its supervisor"
    if node.others:
        text = (
            f"{', '.join(hosts)} have fallen silent: their power, their network or their "
            "supervisors"
        )
    on = "on them" if node.others else "on it"
    if not ranks:
        return f"{text}; which ranks are {on} is not known"
    return f"{text}; {ranks_text(ranks)} {verb(ranks, 'is', 'are')} {on}"
