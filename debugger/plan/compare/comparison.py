"""Finds for each rank of one world the rank of the other that it is to be compared with, and says
which of them differ.

It walks along the calls of two ranks that stand for each other, to where they differ first.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...diagnosis.facts.call_histories import slip_text
from ...diagnosis.facts.slips import Slips
from ...record.ops import OPS
from ...record.signature import ANY_SOURCE, Signature
from ...record.snapshot import Call, CallSite, Group, GroupKey
from ..traffic import UNKNOWN, Link, Loop, RankCalls, Traffic, steps_of, traffic

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
        kept = [one for one in found.found if one.kind not in self.ignored]
        if self.exact and "line" not in self.ignored:
            kept += partings(self.left[rank], self.right[other])
        return Walk(found.alike, tuple(kept))


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
             one.other_times, one.text)
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


ENDS = ("ends", "goes_on")
BEFORE = "before"
STEPS = "steps"
PARTED = "parted"
HARD = ("op", "group", "dtype", "reduce_op", "root", "peer", "tag")
"""Differences after which the calls that follow are not looked at: from there on the ranks do
something else. After others (shape, world, line, async) they may be the same still. `world`: one
world has a group for what is the whole world in the other, whose size differs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where two ranks differ. `one` and `other` are the calls, None where a rank makes no
    more; `number` and `other_number` are theirs, counted from 0 over all calls of the rank; `group`
    and `other_group` what their groups are called; `step` is the step of the loop, where there is
    one. `after`: the last call before that both have made.

    `kind`: a field of the calls (see `HARD`); `ends`: the second rank makes
    no more calls, `goes_on`: the first one; `steps`: the same step comes another number of times,
    `times` and `other_times`; `before`: they differ where the calls are no longer on record;
    `parted`: one has skipped, repeated or swapped calls, as `text` says, from this one of the
    group on.
    """

    kind: str
    number: int
    other_number: int
    one: Call | None = None
    other: Call | None = None
    after: Call | None = None
    step: int | None = None
    times: int = 0
    other_times: int = 0
    group: str = ""
    other_group: str = ""
    text: str = ""

    @property
    def is_hard(self) -> bool:
        """Whether the ranks do something else from here on."""
        return self.kind in (*HARD, *ENDS, BEFORE)


@dataclass(frozen=True, slots=True)
class Walk:
    """`alike`: so many calls are the same, or differ softly. `found`: the first difference of each
    kind, in order."""

    alike: int
    found: tuple[Difference, ...]

    @property
    def hard(self) -> Difference | None:
        """The difference at which they part."""
        return next((one for one in self.found if one.is_hard), None)


def walk(one: Actor, other: Actor, loop: Loop | None, other_loop: Loop | None, exact: bool) -> Walk:
    """Compare the calls of two ranks, whose loops are known.

    A training loop that comes more often in one of them is no difference of the calls: what is
    before it, in it and after it is compared, and `steps` says so. But where a rank has left its
    loop in the middle of a step, this is where they part.
    """
    a, b = one.calls, other.calls
    if a.lost or b.lost:
        return _tails(one, other, loop, other_loop, exact)
    plain = _along(one, other, a.calls, b.calls, exact)
    if loop is None or other_loop is None or loop.times == other_loop.times:
        return _stepped(plain, loop)
    folded = _along(one, other, _folded(a.calls, loop), _folded(b.calls, other_loop), exact)
    parts = plain.hard
    if parts is None:
        return _stepped(plain, loop)
    less = other_loop if other_loop.times < loop.times else loop
    skipped = less.period * (less.times - 1)
    if folded.hard is not None and folded.alike + skipped <= plain.alike:
        return _stepped(plain, loop)
    steps = Difference(
        STEPS, loop.start, other_loop.start, times=loop.times, other_times=other_loop.times
    )
    return Walk(plain.alike, (*_stepped(folded, None).found, steps))


def _folded(calls: Sequence[Call], loop: Loop) -> list[Call]:
    """With one step alone: the last, since the first may do more."""
    return [*calls[: loop.start], *calls[loop.stop - loop.period :]]


def _along(
    one: Actor, other: Actor, row: Sequence[Call], another: Sequence[Call], exact: bool
) -> Walk:
    found: dict[str, Difference] = {}
    after: Call | None = None
    for place, (call, twin) in enumerate(zip(row, another, strict=False)):
        for kind in differences(one, call, other, twin, exact):
            at = Difference(
                kind,
                call.number,
                twin.number,
                call,
                twin,
                after,
                group=one.label(call),
                other_group=other.label(twin),
            )
            found.setdefault(kind, at)
            if kind in HARD:
                return Walk(place, tuple(found.values()))
        after = call
    alike = min(len(row), len(another))
    if len(row) != len(another):
        longer = row if len(row) > alike else another
        kind = ENDS[longer is another]
        first = row[alike] if longer is row else None
        second = another[alike] if longer is another else None
        number = first.number if first else len(one.calls.calls) + one.calls.lost
        twin_number = second.number if second else len(other.calls.calls) + other.calls.lost
        found[kind] = Difference(
            kind,
            number,
            twin_number,
            first,
            second,
            after,
            group=one.label(first) if first else "",
            other_group=other.label(second) if second else "",
        )
    return Walk(alike, tuple(found.values()))


def _tails(
    one: Actor, other: Actor, loop: Loop | None, other_loop: Loop | None, exact: bool
) -> Walk:
    """Compares the calls with the same numbers, where the first calls of one are no longer on
    record. Calls before them are the same if the groups' chains are."""
    a, b = one.calls, other.calls
    begin = max(a.lost, b.lost)
    row, another = a.calls[begin - a.lost :], b.calls[begin - b.lost :]
    found = _along(one, other, row, another, exact)
    if found.hard is not None and _turns(one, other, loop, other_loop, not found.alike):
        steps = Difference(STEPS, begin, begin)
        if loop is not None and other_loop is not None:
            steps = replace(steps, times=loop.times, other_times=other_loop.times)
        return Walk(found.alike, (steps,))
    if exact and (parted := _parted_before(row, another)) is not None:
        return Walk(0, (parted,))
    return found


def partings(one: Actor, other: Actor) -> Iterator[Difference]:
    """Yields for each group the call at which the two ranks came from lines that do not belong
    together, however long ago: a record has the lines of all calls."""
    theirs = {label: other.calls.groups[key] for key, label in other.labels.items()}
    for key, label in one.labels.items():
        sides = (one.calls.groups[key], theirs.get(label))
        issued = {at: side.issued for at, side in enumerate(sides) if side is not None}
        logs = {at: side.lines for at, side in enumerate(sides) if side is not None and side.lines}
        if len(logs) < len(sides) or not all(issued.values()):
            continue
        _, slip = Slips().of(label, logs, issued)
        if slip is not None and slip.strong:
            text = slip_text(slip, lambda side: "AB"[side[0]])
            yield Difference(PARTED, slip.seq, slip.seq, group=label, other_group=label, text=text)


def _turns(
    one: Actor, other: Actor, loop: Loop | None, other_loop: Loop | None, at_once: bool
) -> bool:
    """Whether both repeat the same step, from wherever in it each is known, and, if they do not
    differ `at_once`, as with other steps at the same number, do the same after it."""
    if loop is None or other_loop is None or loop.period != other_loop.period:
        return False
    sides = ((one, loop), (other, other_loop))
    first, second = (_structures(actor, its.stop - its.period, its.stop) for actor, its in sides)
    if all(first != second[turn:] + second[:turn] for turn in range(len(second))):
        return False
    ends = [_structures(actor, its.stop, len(actor.calls.calls)) for actor, its in sides]
    return at_once or ends[0] == ends[1]


def _structures(actor: Actor, begin: int, end: int) -> list[tuple[object, ...]]:
    return [actor.structure(call) for call in actor.calls.calls[begin:end]]


def _parted_before(row: Sequence[Call], another: Sequence[Call]) -> Difference | None:
    seen = set()
    for call, twin in zip(row, another, strict=False):
        if call.group in seen or call.signature.peer is not None:
            continue
        seen.add(call.group)
        if call.chain and twin.chain and call.chain != twin.chain:
            return Difference(BEFORE, call.number, twin.number, call, twin)
    return None


def _stepped(found: Walk, loop: Loop | None) -> Walk:
    """With the step of each difference that lies in the loop of the first rank."""
    if loop is None:
        return found
    return Walk(
        found.alike,
        tuple(
            replace(one, step=(one.number - loop.start) // loop.period)
            if one.number >= loop.start and one.step is None
            else one
            for one in found.found
        ),
    )


LIST_OPS = frozenset(op for op, row in OPS.items() if row.has_list and not row.coalesced)
"""They take one tensor for each rank."""

Labels = frozenset[str]


@dataclass(frozen=True, slots=True)
class Actor:
    """A rank with what its groups are called: equal names are told apart by their order."""

    calls: RankCalls
    labels: Mapping[GroupKey, str] = field(default_factory=dict)

    @classmethod
    def of(cls, calls: RankCalls) -> Actor:
        """The rank whose calls these are."""
        labels: dict[GroupKey, str] = {}
        seen: dict[str, int] = {}
        for key, name in calls.group_names().items():
            if calls.rank in calls.groups[key].ranks:
                seen[name] = seen.get(name, 0) + 1
                labels[key] = name if seen[name] == 1 else f"{name}, number {seen[name]}"
        return cls(calls, labels)

    def label(self, call: Call) -> str:
        """The name of the group of the call."""
        return self.labels.get(call.group, UNKNOWN)

    def is_world(self, call: Call) -> bool:
        """Whether the group of the call is the whole world."""
        group = self.calls.groups.get(call.group)
        return group is not None and len(group.ranks) == self.calls.world_size

    def root(self, call: Call) -> Labels:
        """The place of the root in its group."""
        return self._labels(call, call.signature.root)

    def peer(self, call: Call) -> Labels:
        """The place of the other end of a message, seen from this rank."""
        return self._labels(call, call.signature.peer)

    def _labels(self, call: Call, other: int | None) -> Labels:
        if other is None:
            return frozenset()
        group: Group | None = self.calls.groups.get(call.group)
        if other == ANY_SOURCE or group is None or other not in group.ranks:
            return frozenset({"any"})
        if self.calls.rank not in group.ranks:
            return frozenset({"any"})
        size, here, there = len(group.ranks), *map(group.ranks.index, (self.calls.rank, other))
        labels = {"itself" if there == here else "later" if there > here else "earlier"}
        labels |= {"first"} if there == 0 else set()
        labels |= {"last"} if there == size - 1 else set()
        labels |= {"next"} if (there - here) % size == 1 else set()
        labels |= {"previous"} if (here - there) % size == 1 else set()
        return frozenset(labels)

    @property
    def placement(self) -> dict[str, str]:
        """Whether it is the first, the last or an inner rank of each group."""
        found = {}
        for key, label in self.labels.items():
            ranks = self.calls.groups[key].ranks
            if len(ranks) > 1:
                place = ranks.index(self.calls.rank)
                found[label] = "first" if not place else _LAST.get(len(ranks) - place, "inner")
        return found

    def structure(self, call: Call) -> tuple[object, ...]:
        """Returns what must be alike for ranks of one world to be shown as one, sizes apart."""
        signature = call.signature
        return (
            signature.op,
            self.label(call),
            frozenset(signature.dtypes),
            signature.reduce_op,
            self.root(call),
            self.peer(call),
            signature.tag,
            site_key(call.site),
        )


_LAST = {1: "last"}


def differences(one: Actor, call: Call, other: Actor, another: Call, exact: bool) -> Iterator[str]:
    """The kinds of all differences between the call of one rank and that of the other, those that
    weigh most first. `exact`: their worlds have the same size."""
    a, b = call.signature, another.signature
    if a.op != b.op:
        yield "op"
        return
    if one.label(call) != other.label(another):
        # A mesh's axis that is as long as the world is the default group itself.
        whole = not exact and (one.is_world(call) or other.is_world(another))
        yield "world" if whole else "group"
    if set(a.dtypes) != set(b.dtypes):
        yield "dtype"
    if a.reduce_op != b.reduce_op:
        yield "reduce_op"
    if exact:
        if a.root != b.root:
            yield "root"
        if a.peer != b.peer:
            yield "peer"
    else:
        if not _overlap(one.root(call), other.root(another)):
            yield "root"
        if not _overlap(one.peer(call), other.peer(another)):
            yield "peer"
    if a.tag != b.tag:
        yield "tag"
    if _sizes(a, exact) != _sizes(b, exact):
        yield "shape"
    if site_key(call.site) != site_key(another.site):
        yield "line"
    if call.is_async != another.is_async:
        yield "async"


def _overlap(one: Labels, other: Labels) -> bool:
    return bool(one & other) or one == other


def _sizes(signature: Signature, exact: bool) -> object:
    """In worlds of other sizes the lists with a tensor for each rank have other lengths, and the
    tensors that hold all parts another size, where nothing else differs."""
    if exact:
        return (signature.tensors, signature.others, signature.sends, signature.receives)
    if signature.op in LIST_OPS:
        return frozenset(signature.tensors)
    return signature.tensors


def site_key(site: CallSite | None) -> tuple[str, int, str]:
    """A line of code, wherever the copy of the program lies."""
    return ("", 0, "") if site is None else (os.path.basename(site.file), site.line, site.function)
