"""Whose calls the head asks for before it believes a finding: of a large job not everybody's.

A rank that calls all the time has told its newest calls alone; where ranks disagreed first may be
long before those. All that is on record of one rank is 400 KB, so of 16,384 ranks some are asked:
those that the finding is about, and of the ranks that tell the same (equal counts and equal chains
in its group: they called the same) one, who speaks for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...diagnosis.findings import Finding
from ...record.snapshot import Rank

ALL = 512
"""Of so many ranks on other nodes all are asked."""
MOST = 64
_MOST_OF_THE_FINDING = 32


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


def _speakers(finding: Finding, ranks: Mapping[int, Rank]) -> Iterable[int]:
    """The first rank of each class, as the diagnosis takes it; the smallest classes first, since
    what many do is most likely right."""
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
    return [row[0] for row in (*rows[-1:], *rows[:-1])]
