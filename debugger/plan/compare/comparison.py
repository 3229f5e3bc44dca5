"""Finds for each rank of one world the rank of the other that it is to be compared with, and says
which of them differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...record.snapshot import Call
from ..traffic.calls import RankCalls
from ..traffic.costs import Link
from ..traffic.table import Loop, Traffic, steps_of, traffic
from .rank_pair import BEFORE, ENDS, Actor, Difference, Walk, site_key, walk

UNLIKE_ANY = "unlike_any"
"""Of ranks of the first world: none of the second stands for them."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Ranks of both worlds that stand for each other and differ (or not) in the same way. `alike`:
    so many calls, from the start, are the same."""

    ranks: tuple[int, ...]
    other_ranks: tuple[int, ...]
    alike: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`pairings` are in order of weight: those that do something else, those that end before the
    other, those whose calls differ in sizes or lines alone, and those that are equal. `groups` are
    sentences about groups that one world has and the other does not have."""

    sizes: tuple[int, int]
    seen: tuple[int, int]
    pairings: Sequence[Pairing]
    missing: tuple[tuple[int, ...], tuple[int, ...]]
    groups: Sequence[str]
    tables: tuple[Traffic, Traffic]

    @property
    def is_exact(self) -> bool:
        """Whether both worlds have the same size, so that rank is compared with rank."""
        return self.sizes[0] == self.sizes[1]

    @property
    def first(self) -> tuple[Pairing, Difference] | None:
        """The place where they differ first."""
        return next(((one, one.differences[0]) for one in self.pairings if one.differences), None)

    @property
    def equal(self) -> bool:
        """Whether there is no difference at all."""
        return self.first is None and not self.groups and not any(self.missing)


def compare(
    ranks: Sequence[RankCalls],
    other_ranks: Sequence[RankCalls],
    ignored: Collection[str] = (),
    link: Link | None = None,
) -> Comparison:
    """Compare two worlds. `ignored`: kinds of differences that are none (`line`, `shape`, ...)."""
    size, other_size = (max((one.world_size for one in side), default=0) for side in
                        (ranks, other_ranks))  # fmt: skip
    left = {one.rank: Actor.of(one) for one in ranks}
    right = {one.rank: Actor.of(one) for one in other_ranks}
    exact = size == other_size
    tables = traffic(ranks, link), traffic(other_ranks, link)
    pairs = _Pairs(left, right, steps_of(ranks), steps_of(other_ranks), exact, frozenset(ignored))
    missing: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if exact:
        missing = (tuple(sorted(right.keys() - left.keys())),
                   tuple(sorted(left.keys() - right.keys())))  # fmt: skip
    return Comparison(
        sizes=(size, other_size),
        seen=(len(left), len(right)),
        pairings=pairs.pairings(),
        missing=missing,
        groups=_groups(tables, exact),
        tables=tables,
    )


@dataclass(frozen=True, slots=True)
class _Pairs:
    left: Mapping[int, Actor]
    right: Mapping[int, Actor]
    loops: Mapping[int, Loop]
    other_loops: Mapping[int, Loop]
    exact: bool
    ignored: frozenset[str]

    def pairings(self) -> list[Pairing]:
        rows: dict[object, list[tuple[int, int, Walk]]] = defaultdict(list)
        same = sorted(self.left.keys() & self.right.keys())
        by_rank = ((rank, rank, self._walk(rank, rank)) for rank in same)
        for rank, other, found in by_rank if self.exact else self._by_role():
            rows[_alike(found)].append((rank, other, found))
        made = [
            Pairing(
                tuple(sorted({rank for rank, _, _ in row if rank >= 0})),
                tuple(sorted({other for _, other, _ in row if other >= 0})),
                row[0][2].alike,
                row[0][2].found,
            )
            for row in rows.values()
        ]
        return sorted(made, key=_weight)

    def _by_role(self) -> Iterator[tuple[int, int, Walk]]:
        """Ranks at the same places of their groups stand for each other; where a place is in one
        world alone, one that does the same, or else the nearest."""
        mine, theirs = _classes(self.left), _classes(self.right)
        used: set[int] = set()
        shown: set[object] = set()
        for (placement, _), members in theirs.items():
            found = [
                (likeness, rank, self._walk(rank, members[0]))
                for likeness, rank in _candidates(mine, placement)
            ]
            # The least unlike: one that does something else at last, then the one whose places
            # are others.
            _, rank, best = min(
                found,
                key=lambda one: (
                    one[2].hard is not None,
                    -one[0],
                    -one[2].alike,
                    len(one[2].found),
                ),
            )
            used.add(rank)
            shown.add(_alike(best))
            for other in members:
                yield rank, other, best
        for members in mine.values():
            if members[0] in used:
                continue
            walks = [self._walk(members[0], others[0]) for others in theirs.values()]
            if any(one.hard is None for one in walks):
                continue
            call = self.left[members[0]].calls.calls
            gone = Difference(UNLIKE_ANY, 0, 0, call[0] if call else None)
            # They differ as others do that have a partner, and are shown with these.
            shared = next((one for one in walks if _alike(one) in shown), Walk(0, (gone,)))
            for rank in members:
                yield rank, -1, shared

    def _walk(self, rank: int, other: int) -> Walk:
        found = walk(
            self.left[rank],
            self.right[other],
            self.loops.get(rank),
            self.other_loops.get(other),
            self.exact,
        )
        kept = tuple(one for one in found.found if one.kind not in self.ignored)
        return Walk(found.alike, kept)


_Placement = tuple[tuple[str, str], ...]
_Class = tuple[_Placement, object]


def _classes(actors: Mapping[int, Actor]) -> dict[_Class, list[int]]:
    """Ranks of one world at the same places that make the same calls."""
    found: dict[_Class, list[int]] = defaultdict(list)
    numbers: dict[object, int] = {}
    for rank, actor in sorted(actors.items()):
        placement = tuple(sorted(actor.placement.items()))
        row = tuple(
            numbers.setdefault(actor.structure(call), len(numbers)) for call in actor.calls.calls
        )
        found[placement, row].append(rank)
    return found


def _candidates(mine: Mapping[_Class, list[int]], placement: _Placement) -> list[tuple[int, int]]:
    """Returns of each class that may stand for ranks at these places how many of its places are the
    same, and its first rank: of those at the very same places, or of all where there are none."""
    same = [
        (len(placement), ranks[0]) for (places, _), ranks in mine.items() if places == placement
    ]
    wanted = dict(placement)
    return same or [
        (sum(wanted.get(label) == place for label, place in places), ranks[0])
        for (places, _), ranks in mine.items()
    ]


def _alike(found: Walk) -> object:
    """Returns what two pairs of ranks have in common that are shown as one."""
    return (
        found.alike if found.hard is not None else None,
        tuple(
            (one.kind, one.number, one.other_number, _text(one.one), _text(one.other), one.times,
             one.other_times)
            for one in found.found
        ),
    )  # fmt: skip


def _text(call: Call | None) -> object:
    """Returns what calls of several ranks have in common: each is about another rank."""
    if call is None:
        return None
    return replace(call.signature, root=None, peer=None), site_key(call.site)


def _weight(pairing: Pairing) -> tuple[int, int, int, int]:
    if not pairing.differences:
        return (4, 0, -len(pairing.other_ranks), 0)
    hard = next((one for one in pairing.differences if one.is_hard), None)
    kind = hard.kind if hard is not None else pairing.differences[0].kind
    order = 3 if hard is None else 1 if kind in ENDS else 0
    order = 0 if kind == BEFORE else 2 if kind == UNLIKE_ANY else order
    first = hard or pairing.differences[0]
    lowest = (pairing.other_ranks or pairing.ranks or (0,))[0]
    return (order, first.number, -len(pairing.other_ranks), lowest)


def _groups(tables: tuple[Traffic, Traffic], exact: bool) -> list[str]:
    """Groups that only one of the worlds has; in worlds of one size also how many of each."""
    sides: list[dict[tuple[str, int], int]] = []
    for table in tables:
        side: dict[tuple[str, int], int] = defaultdict(int)
        for role, count in table.groups.items():
            side[role.name, role.size if exact else 0] += count
        sides.append(side)
    rows = []
    for name, size in sorted({*sides[0], *sides[1]}):
        one, other = (side.get((name, size), 0) for side in sides)
        if (one != other) if exact else (bool(one) != bool(other)):
            of = f" of {size} ranks" if size else ""
            rows.append(f'groups "{name}"{of}: A has {one:,}, B {other:,}')
    return rows
