"""Chooses whose calls the head asks for before it believes a finding: of a large job not
everybody's.

A rank that calls all the time has told its newest calls alone; where ranks disagreed first may be
long before those. All that is on record of one rank is 400 KB, so of 16,384 ranks some are asked:
those that the finding is about, and of the ranks that tell the same (equal counts and equal chains
in its group: they called the same) one, who speaks for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...diagnosis.findings import Finding
from ...record.snapshot import Rank

ALL = 512
"""Up to so many ranks on other nodes all are asked."""
MOST = 64
_MOST_OF_THE_FINDING = 32

MOST_LOOKED_INTO = 64
"""Nodes whose ranks' stacks are taken for the head; each other node takes its own."""
_EACH = 2
"""Ranks that stand at one place, in one wait, have one stack."""


def nodes_to_look_into(ranks: Mapping[int, Rank]) -> frozenset[int] | None:
    """The nodes whose stacks the head asks for; None: all of them. Where there are many, some of
    each sort of ranks: those that are fewest of a sort come first."""
    nodes = {one.node for one in ranks.values() if one.node}
    if len(nodes) <= MOST_LOOKED_INTO:
        return None
    sorts: dict[object, list[int]] = {}
    for rank in ranks.values():
        if rank.node and rank.process.alive:
            waits = tuple((one.activity, one.site, one.inferred) for one in rank.waits)
            groups = tuple((key, one.issued) for key, one in rank.groups.items())
            sort = (rank.process.state, rank.location, rank.free_threads > 0, waits, groups)
            sorts.setdefault(sort, []).append(rank.node)
    chosen: dict[int, None] = {}
    for row in sorted(sorts.values(), key=len):
        chosen.update(dict.fromkeys(row[:_EACH]))
    return frozenset(list(chosen)[:MOST_LOOKED_INTO])


def in_question(finding: Finding, ranks: Mapping[int, Rank]) -> frozenset[int] | None:
    """The ranks whose calls are wanted; None: everybody's."""
    if sum(1 for one in ranks.values() if one.node) <= ALL:
        return None
    about = [*finding.culprits[:_MOST_OF_THE_FINDING], *finding.ranks]
    wanted = dict.fromkeys(about[:_MOST_OF_THE_FINDING])
    for rank in (*_speakers(finding, ranks), *finding.victims):
        if len(wanted) >= MOST:
            break
        wanted[rank] = None
    return frozenset(rank for rank in wanted if rank in ranks)


def came_to_it(
    finding: Finding, ranks: Mapping[int, Rank], asked: Collection[int]
) -> frozenset[int]:
    """Returns the ranks that are in question now, where `asked` were when the finding was seen
    first: not all nodes had told by then where their ranks stand. A class of which one was asked
    needs no other."""
    wanted = [*finding.culprits[:_MOST_OF_THE_FINDING], *_speakers(finding, ranks, asked)]
    new = dict.fromkeys(rank for rank in wanted if rank in ranks and rank not in asked)
    return frozenset(list(new)[:MOST])


def _speakers(
    finding: Finding, ranks: Mapping[int, Rank], asked: Collection[int] = ()
) -> Iterable[int]:
    """The first rank of each class, as the diagnosis takes it, or one that was asked; the smallest
    classes first, since what many do is most likely right."""
    if finding.group is None:
        return ()
    name, members = finding.group.name, set(finding.group.ranks)
    classes: dict[tuple[object, ...], list[int]] = {}
    for number, rank in ranks.items():
        if number in members:
            for key, group in rank.groups.items():
                if key[0] == name and group.issued:
                    told = (key, group.issued, group.chain, group.exact)
                    classes.setdefault(told, []).append(number)
    rows = sorted(classes.values(), key=len)
    # The largest is the reference of all others: without it none of them can be compared.
    return [
        next((rank for rank in row if rank in asked), row[0]) for row in (*rows[-1:], *rows[:-1])
    ]
