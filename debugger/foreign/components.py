"""Graphs of who waits for whom: where following them ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

MOST_STARTS = 64
"""From so many nodes a shortest cycle is looked for: in a job of thousands one of those will do."""


def last_components(onward: Mapping[int, Collection[int]]) -> list[set[int]]:
    """The sets of nodes that reach each other and nothing else, or a node that reaches nothing.

    Tarjan's strongly connected components (SIAM J. Comput. 1972), without recursion: linear in
    nodes and edges.
    """
    component: dict[int, int] = {}
    found: list[set[int]] = []
    for nodes in _components(onward):
        component.update(dict.fromkeys(nodes, len(found)))
        found.append(nodes)
    return [
        nodes
        for at, nodes in enumerate(found)
        if all(component[other] == at for node in nodes for other in onward.get(node, ()))
    ]


def _components(onward: Mapping[int, Collection[int]]) -> Iterator[set[int]]:
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for start in sorted(onward):
        work: list[tuple[int, Iterator[int]]] = []
        if start not in number:
            work.append((start, iter(sorted(onward[start]))))
        while work:
            node, left = work[-1]
            if node not in number:
                number[node] = lowest[node] = len(number)
                path.append(node)
                on_path.add(node)
            for other in left:
                if other not in number:
                    work.append((other, iter(sorted(onward.get(other, ())))))
                    break
                if other in on_path:
                    lowest[node] = min(lowest[node], number[other])
            else:
                work.pop()
                if work:
                    before = work[-1][0]
                    lowest[before] = min(lowest[before], lowest[node])
                if lowest[node] == number[node]:
                    nodes = set()
                    while node not in nodes:
                        nodes.add(path.pop())
                    on_path -= nodes
                    yield nodes


def on_every_cycle(onward: Mapping[int, Collection[int]], nodes: Collection[int]) -> set[int]:
    """Those of these nodes without which the others have no cycle among themselves."""
    found = set()
    for node in nodes:
        left = set(nodes) - {node}
        among = {one: left.intersection(onward[one]) for one in left}
        if all(len(some) == 1 for some in _components(among)):
            found.add(node)
    return found


def shortest_cycle(onward: Mapping[int, Collection[int]], nodes: Collection[int]) -> Sequence[int]:
    """A shortest cycle through the first of these nodes, which all reach each other; in order."""
    best: Sequence[int] = ()
    for start in sorted(nodes)[:MOST_STARTS]:
        came_from: dict[int, int] = {}
        left = deque([start])
        while left and start not in came_from:
            node = left.popleft()
            for other in sorted(onward.get(node, ())):
                if other in nodes and other not in came_from:
                    came_from[other] = node
                    left.append(other)
        cycle = [start]
        while (before := came_from[cycle[-1]]) != start:
            cycle.append(before)
        if not best or len(cycle) < len(best):
            best = cycle[:1] + cycle[:0:-1]
    return best
