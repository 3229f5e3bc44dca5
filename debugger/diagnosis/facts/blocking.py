"""For whom a call waits: the one model of blocking, of the diagnosis and of a plan.

    call                  wherever it runs, at best         on gloo
    all_reduce, ...       all ranks of the group            all ranks of the group
    broadcast             root: nobody; others: the root    its parent's data, and that its
                                                            children in the tree have come
    scatter               root: nobody; others: the root    root: all; others: the root
    gather                root: all; others: nobody         root: all; others: the root
    reduce                root: all; others: nobody         all, where each has a part
    send                  its receive, or room in a buffer  its receive
    recv                  its send                          its send
    new_group             its members; on NCCL nobody       its members
    all on NCCL           the device alone: the program     -
                          goes on, but in barrier, and
                          waits at its end

The first column is `certainly`: whoever is stuck by it is stuck wherever the program runs. A rank
that is seen to wait (`needs`) is judged by it; where it says "nobody", that the call has to wait is
concluded from its waiting. A plan, which sees nobody wait, takes what is known of the backend as
well (`Model`).

gloo sends nothing before the other side has posted its receive, so its messages are never buffered
(distcore's tcp says itself how much it buffers), and a broadcast goes down a binomial tree (gloo's
`broadcast.cc`). A call of no elements sends nothing. `strict` is the other extreme: nothing
is buffered, every call waits for its whole group, and all streams of a device are one. What is
stuck only by that needs luck.

`in_order` is at best, but for what a device does: calls of one stream follow each other there, and
so does a program that stands still at each that it waits for (`plan/judgement` says where that is
so).
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...record.ops import op_of
from ...record.signature import Signature
from ...record.wording import by_device

EAGER_BYTES = 64 << 10
"""What backends that do not say what they buffer take of a channel: MPI's eager limits, and a
socket's buffers, are of this size or larger."""


class WaitsFor(enum.Enum):
    """The members that have to come before a collective call is over for its caller."""

    ALL = enum.auto()
    ROOT = enum.auto()
    TREE = enum.auto()
    NOBODY = enum.auto()


def certainly(signature: Signature, rank: int) -> WaitsFor:
    """For whom this collective of the global rank waits wherever it runs. NOBODY: nobody knows
    whether it has to wait, nor for whom."""
    certain = op_of(signature.op).certain
    is_root = signature.root == rank
    if certain == "root":
        return WaitsFor.NOBODY if is_root else WaitsFor.ROOT
    return WaitsFor.ALL if certain == "all" or is_root else WaitsFor.NOBODY


@dataclass(frozen=True, slots=True)
class Model:
    """`buffered_bytes`: of each channel of messages, on every backend; None: as the backend does.
    `buffers`: by backend, of all messages from one rank to another.
    `strict`: nobody is lucky. `in_order`: the program goes on when the device has."""

    buffered_bytes: int | None = None
    strict: bool = False
    in_order: bool = False
    buffers: Mapping[str, int] = field(default_factory=dict)

    def collective(self, backend: str, signature: Signature, size: int, rank: int) -> WaitsFor:
        """Returns for whom this global rank waits in this call of a group of `size` ranks."""
        if signature.tensors and not any(signature.counts) and not any(_counts(signature)):
            return WaitsFor.ALL if self.strict else WaitsFor.NOBODY
        if self.strict or on_device(backend):
            return WaitsFor.ALL
        if backend == "gloo" and op_of(signature.op).certain != "all":
            is_root = signature.root == rank
            if signature.op == "broadcast":
                return WaitsFor.TREE
            if signature.op == "reduce":
                # A ring over segments, two for each rank: those of few elements are not in all.
                every_rank_has_a_part = min(signature.counts, default=0) >= 4 * size * size
                return WaitsFor.ALL if is_root or every_rank_has_a_part else WaitsFor.NOBODY
            return WaitsFor.ALL if is_root else WaitsFor.ROOT
        return certainly(signature, rank)

    def room_bytes(self, backend: str) -> int:
        """Returns how many bytes of a channel's messages are buffered before their receives are
        posted."""
        if self.strict:
            return 0
        if self.buffered_bytes is not None:
            return self.buffered_bytes
        if self.in_order and on_device(backend):
            return sys.maxsize  # it depends on links and versions
        return self.buffers.get(backend, 0 if backend == "gloo" else EAGER_BYTES)

    def is_shared(self, backend: str) -> bool:
        """Whether that room is for the messages of all tags from one rank to another."""
        return self.buffered_bytes is None and backend in self.buffers

    def blocks_host(self, backend: str, op: str) -> bool:
        """Whether a thread that waits for this call stands still."""
        waits = self.strict or self.in_order or not on_device(backend)
        return waits or op in ("barrier", "monitored_barrier")

    def creation_blocks(self, backend: str) -> bool:
        """Whether the members of a new group wait for each other in `new_group`."""
        return self.strict or any(
            not on_device(name) for name in by_device(backend.lower()).values()
        )


def _counts(signature: Signature) -> Iterator[int]:
    for _, shape in signature.others:
        count = 1
        for length in shape:
            count *= length
        yield count


def on_device(backend: str) -> bool:
    """Whether calls go on beside the program, on streams of a device."""
    return backend in ("nccl", "xccl", "rccl", "hccl")


def backend_of(config: str, signature: Signature) -> str:
    """The one of them that this call enters."""
    known = by_device(config.lower())
    if signature.device in known:
        return known[signature.device]
    names = list(known.values())
    if len(names) == 1:
        return names[0]
    return names[0] if all(map(on_device, names)) else next(n for n in names if not on_device(n))


def tree_parent(place: int, root: int, size: int) -> int | None:
    """In the binomial tree of a broadcast over so many places: from which place this one receives;
    None for the root."""
    at = (place - root) % size
    if at == 0:
        return None
    return (at - (1 << (at.bit_length() - 1)) + root) % size


def tree_children(place: int, root: int, size: int) -> list[int]:
    """To which places this one sends."""
    at = (place - root) % size
    found = []
    step = 1 << at.bit_length()
    while at + step < size:
        found.append((at + step + root) % size)
        step <<= 1
    return found
