"""A mistake that several ranks make in the same call, on the same line, is one finding.

Every rank reports its own: the tensor that it gives, the buffer that it reads too early, the child
that it has forked. Along one axis of a device mesh every row of ranks is a group of its own, and
what all of them get from one line (a learning rate, say) differs in each; so does a call that a
wrong branch makes in every row, and ranks of every row wait for each other on the same lines, or
for one that has left at the same line. The earliest finding stands for all, and every rank that
made the same mistake is a culprit of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from ...record.kinds import Family
from ...record.limits import SHOWN_RANKS
from ...record.wording import ranks_text
from ..facts.world import DEFAULT_GROUP, OF_MESH, World
from ..findings import Finding, RankEvidence
from ..limits import TOGETHER_NS, Candidate
from ..story import changed


def alike(world: World, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, those alike joined into the earliest of them."""
    found: list[Candidate] = []
    parties: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda one: one.finding.observable_ns):
        key = _key(world, candidate.finding)
        while key is not None and key in parties and _overlap(candidate, parties[key]):
            key = (*key, "again")
        if key is None:
            found.append(candidate)
        else:
            parties.setdefault(key, []).append(candidate)
    return found + [_joined(party) for party in parties.values()]


def _key(world: World, finding: Finding) -> tuple[object, ...] | None:
    where = finding.ranks.get(finding.culprits[0]) if finding.culprits else None
    if where is None or where.location is None:
        return None
    if finding.about.at_one_line and len(finding.culprits) == 1:
        group = finding.group.name if finding.group else None
        return (finding.kind, group, finding.seq, where.location)
    desc = finding.group.desc if finding.group else ""
    in_doubt = finding.severity == "warning"  # a forgotten gradient is so in all groups alike
    if finding.kind == "divergence" and (in_doubt or desc.startswith(OF_MESH)):
        what = (finding.data[name] for name in ("quantity", "name", "step"))
        return (finding.kind, in_doubt or desc, *what, where.location)
    return _mismatch(finding) or _row(world, finding)


def _mismatch(finding: Finding) -> tuple[object, ...] | None:
    """Returns the key of a finding of ranks of one row of a mesh that have made different calls."""
    group = finding.group
    if not finding.about.of_signatures or group is None or group.desc == DEFAULT_GROUP:
        return None
    calls = frozenset((_op(evidence), evidence.location) for evidence in finding.ranks.values())
    size = len(group.ranks)
    return (finding.kind, finding.severity, group.desc, size, finding.seq, calls)


def _row(world: World, finding: Finding) -> tuple[object, ...] | None:
    """Returns the key of a finding of ranks that wait in vain while there are others, which may be
    another row of the mesh."""
    family, desc = finding.about.family, finding.group.desc if finding.group else ""
    if family is Family.DEADLOCK:  # no rank is in two of them
        if len(finding.culprits) + len(finding.victims) >= len(world.ranks):
            return None
        about = finding.culprits
    elif family is Family.ABSENCE and desc.startswith(OF_MESH):
        about = tuple(finding.ranks)
    else:
        return None
    rows = [finding.ranks.get(rank) for rank in about]
    if not all(row and row.location for row in rows):
        return None
    calls = Counter((_op(row), row.location) for row in rows if row)
    what = (finding.severity, finding.proven, finding.cause, finding.seq, desc)
    return (finding.kind, *what, frozenset(calls.items()))


def _op(evidence: RankEvidence) -> str:
    """Without the root, which has another number in every row."""
    return (evidence.call or "").partition("(")[0]


def _overlap(candidate: Candidate, party: list[Candidate]) -> bool:
    """Whether a rank of it is in a group of the party: that is no other row, but what became of a
    rank that had gone wrong."""
    group = candidate.finding.group
    if group is None or not candidate.finding.about.of_signatures:
        return False
    others = (one.finding.group for one in party)
    return any(other and not set(group.ranks).isdisjoint(other.ranks) for other in others)


def _joined(party: list[Candidate]) -> Candidate:
    first = party[0].finding
    culprits = {rank for one in party for rank in one.finding.culprits}
    victims = {rank for one in party for rank in one.finding.victims} - culprits
    others = sorted(culprits.difference(first.culprits))
    ranks = dict(first.ranks)
    for one in party:
        for rank, seen in one.finding.ranks.items():
            if len(ranks) < SHOWN_RANKS:
                ranks.setdefault(rank, seen)
    for one in party:  # what a finding says of its culprits, others saw in passing
        ranks |= {rank: one.finding.ranks[rank] for rank in one.finding.culprits}
    cycle = first.about.family is Family.DEADLOCK  # whose order tells who waits for whom
    again = f"{ranks_text(others)} wait for each other on the same lines"
    finding = replace(
        first,
        message=f"{first.message}; {ranks_text(others)} as well" if others else first.message,
        culprits=(*first.culprits, *others) if cycle else tuple(sorted(culprits)),
        victims=tuple(sorted(victims)),
        ranks=ranks,
        details=(*first.details, again) if cycle and others else first.details,
    )
    finding = changed("alike", first, finding)
    # Most likely all ranks run the line: which of them is first is chance.
    ready_ns = max(party[0].ready_ns, first.observable_ns + TOGETHER_NS)
    return replace(party[0], finding=finding, ready_ns=ready_ns)
