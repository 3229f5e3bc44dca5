"""Walks along the calls of two ranks that stand for each other, to where they differ first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...record.ops import OPS
from ...record.signature import ANY_SOURCE, Signature
from ...record.snapshot import Call, CallSite, Group, GroupKey
from ..traffic.calls import UNKNOWN, RankCalls
from ..traffic.table import Loop

ENDS = ("ends", "goes_on")
BEFORE = "before"
STEPS = "steps"
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
    `times` and `other_times`; `before`: they differ where the calls are no longer on record.
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
