"""In what two calls differ, of ranks that stand for each other in two worlds.

In worlds of one size all must be the same. Where the sizes differ, ranks are told by their place in
the group: "the next one", "the first".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...record.ops import OPS
from ...record.signature import ANY_SOURCE, Signature
from ...record.snapshot import Call, CallSite, Group, GroupKey
from ..traffic.calls import UNKNOWN, RankCalls

HARD = ("op", "group", "dtype", "reduce_op", "root", "peer", "tag")
"""Differences after which the calls that follow are not looked at: from there on the ranks do
something else. After others (shape, world, line, async) they may be the same still. `world`: one
world has a group for what is the whole world in the other, whose size differs."""

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
        """What the group of the call is called."""
        return self.labels.get(call.group, UNKNOWN)

    def is_world(self, call: Call) -> bool:
        """Whether the group of the call is the whole world."""
        group = self.calls.groups.get(call.group)
        return group is not None and len(group.ranks) == self.calls.world_size

    def root(self, call: Call) -> Labels:
        """Where the root stands in its group."""
        return self._labels(call, call.signature.root)

    def peer(self, call: Call) -> Labels:
        """Where the other end of a message stands, seen from this rank."""
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
        """What must be alike for ranks of one world to be shown as one, sizes apart."""
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
