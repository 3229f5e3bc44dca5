"""The plan of each call: its transfers, their groups, and what is computed in between.

Called where the call's stream is current: copies and arithmetic of torch go onto it at once, in the
order they are made. `Batch`es follow each other on the stream; the transfers of one batch run
together. A `Planned` is a call that is checked and can be launched. Nothing here knows streams,
communicators or a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from ..engine.staging import Staging
from . import elements
from .elements import Reducing, WriteTarget, moved
from .library import (
    AllGather,
    AllReduce,
    Broadcast,
    Receiving,
    Reduce,
    ReduceScatter,
    Sending,
    Transfer,
)


@dataclass
class Batch:
    """Transfers that run together, and what is computed when they are over."""

    transfers: list[Transfer] = field(default_factory=list)
    then: list[Callable[[], object]] = field(default_factory=list)


Plan = list[Batch]


def merged(plans: Sequence[Plan]) -> Plan:
    """Several calls as one: their first phases together, then their second ones."""
    return [
        Batch(
            [transfer for phase in step if phase for transfer in phase.transfers],
            [then for phase in step if phase for then in phase.then],
        )
        for step in zip_longest(*plans)
    ]


def all_reduce(tensor: Tensor, reducing: Reducing, rank: int, size: int) -> Plan:
    """Plans one call; where NCCL has not the op: parts exchanged, each combined by one rank,
    gathered."""
    target = WriteTarget(tensor, reads=True)
    flat = target.flat
    if not flat.numel():
        return [Batch([], target.stores)]
    if reducing.combine is not None:
        parts = elements.cut(target.flat, size)
        transfers, had = _exchanged_parts(parts, rank, size)
        exchange = Batch(transfers, [lambda: _fold(reducing, had, parts[rank])])
        share: list[Transfer] = [
            Broadcast(moved(part), root) for root, part in enumerate(parts) if part.numel()
        ]
        return [exchange, Batch(share, target.stores)]
    given = reducing.contribution(flat)
    phase = Batch([AllReduce(given, given, reducing)])
    if reducing.finishes:
        phase.then.append(lambda: reducing.finish(given, flat, size))
    phase.then += target.stores
    return [phase]


def reduce(tensor: Tensor, reducing: Reducing, root: int, rank: int, size: int) -> Plan:
    """To `root`, whose tensor is written; the others' keep their contents."""
    at_root = rank == root
    target = WriteTarget(tensor, reads=True)
    flat = target.flat
    if not flat.numel():
        return []
    if reducing.combine is not None:
        parts = elements.cut(target.flat, size)
        transfers, had = _exchanged_parts(parts, rank, size)
        # Not into this rank's own part: a tensor that is not the root's keeps its contents.
        folded = parts[rank] if rank == root else torch.empty_like(parts[rank])
        exchange = Batch(transfers, [lambda: _fold(reducing, had, folded)])
        if rank != root:
            return [exchange, Batch([Sending(moved(folded), root)] if folded.numel() else [])]
        bring: list[Transfer] = [
            Receiving(moved(part), peer)
            for peer, part in enumerate(parts)
            if peer != rank and part.numel()
        ]
        return [exchange, Batch(bring, target.stores)]
    given = reducing.contribution(flat)
    phase = Batch([Reduce(given, given, root, reducing)])
    if at_root:
        if reducing.finishes:
            phase.then.append(lambda: reducing.finish(given, flat, size))
        phase.then += target.stores
    return [phase]


def reduce_scatter(
    output: Tensor, inputs: Sequence[Tensor], reducing: Reducing, rank: int, size: int
) -> Plan:
    """`inputs`: one for each rank. One call where they have one size (and lie one after another, or
    in a copy); else one reduce for each rank, together."""
    target = WriteTarget(output)
    flat = target.flat
    counts = [one.numel() for one in inputs]
    if not any(counts):
        return []
    if reducing.combine is not None:
        return _combined_by_part(target, inputs, reducing, rank, size)
    if len(set(counts)) == 1:
        given = reducing.contribution(elements.joined(inputs))
        result = (
            reducing.view(flat) if reducing.in_place else given.new_empty(given.numel() // size)
        )
        phase = Batch([ReduceScatter(given, result, reducing)])
    else:
        parts = [reducing.contribution(elements.flat(one)) for one in inputs]
        result = reducing.view(flat) if reducing.in_place else parts[rank]
        phase = Batch(
            [
                Reduce(part, result if root == rank else part, root, reducing)
                for root, part in enumerate(parts)
                if part.numel()
            ]
        )
    if flat.numel():
        if reducing.finishes:
            phase.then.append(lambda: reducing.finish(result, flat, size))
        phase.then += target.stores
    return [phase]


def broadcast(tensor: Tensor, root: int, rank: int) -> Plan:
    target = WriteTarget(tensor, reads=rank == root)
    if not target.flat.numel():
        return []
    phase = Batch([Broadcast(moved(target.flat), root)])
    if rank != root:
        phase.then += target.stores
    return [phase]


def all_gather(outputs: Sequence[Tensor], source: Tensor, rank: int) -> Plan:
    """`outputs`: one for each rank. One call where they have one size, into the outputs themselves
    where they lie one after another; else one broadcast for each rank, together."""
    counts = [one.numel() for one in outputs]
    if not any(counts):
        return []
    given = elements.flat(source)
    if len(set(counts)) == 1:
        whole, stores = elements.room_for(outputs)
        return [Batch([AllGather(moved(given), moved(whole))], stores)]
    targets = [WriteTarget(one) for one in outputs]
    if given.numel():
        targets[rank].flat.copy_(given)
    phase = Batch()
    for root, target in enumerate(targets):
        if target.flat.numel():
            phase.transfers.append(Broadcast(moved(target.flat), root))
            phase.then += target.stores
    return [phase]


def gather(
    outputs: Sequence[Tensor] | None, source: Tensor, root: int, rank: int, size: int
) -> Plan:
    """Each rank sends to the root; `outputs` are the root's."""
    if not source.numel():
        return []
    given = elements.flat(source)
    if outputs is None:
        return [Batch([Sending(moved(given), root)])]
    return _exchange(outputs, {rank: given}, rank, size)


def scatter(
    output: Tensor, inputs: Sequence[Tensor] | None, root: int, rank: int, size: int
) -> Plan:
    """The root sends to each rank; `inputs` are the root's."""
    if not output.numel():
        return []
    if inputs is None:
        target = WriteTarget(output)
        return [Batch([Receiving(moved(target.flat), root)], target.stores)]
    sources = {to: elements.flat(one) for to, one in enumerate(inputs)}
    return _exchange([output if to == rank else None for to in range(size)], sources, rank, size)


def all_to_all(outputs: Sequence[Tensor], inputs: Sequence[Tensor], rank: int, size: int) -> Plan:
    """Each rank sends to each other one what both have room for, nothing where that is empty."""
    sources = {to: elements.flat(one) for to, one in enumerate(inputs)}
    return _exchange(outputs, sources, rank, size)


def send(tensor: Tensor, peer: int, tag: int) -> Plan:
    """Empty messages are sent too: the receiver must learn that they came, and NCCL has nothing
    to say it with but a byte."""
    flat = moved(elements.flat(tensor))
    return [Batch([Sending(flat if flat.numel() else _a_byte(tensor), peer, tag)])]


def receive(tensor: Tensor, peer: int, tag: int) -> Plan:
    target = WriteTarget(tensor)
    flat = moved(target.flat)
    return [Batch([Receiving(flat if flat.numel() else _a_byte(tensor), peer, tag)], target.stores)]


def barrier(kind: str, index: int) -> Plan:
    """A byte from each rank to all."""
    token = torch.zeros(1, dtype=torch.uint8, device=torch.device(kind, index))
    return [Batch([AllReduce(token, token, Reducing("MAX", torch.uint8, torch.uint8))])]


def _a_byte(like: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.uint8, device=like.device)


def _exchange(
    outputs: Sequence[Tensor | None], sources: dict[int, Tensor], rank: int, size: int
) -> Plan:
    """Send each source to its rank and receive each output from its own, nearest first; this rank's
    part is copied."""
    phase = Batch()
    for distance in range(size):
        to, come_from = (rank + distance) % size, (rank - distance) % size
        given, output = sources.get(to), outputs[come_from]
        if distance and given is not None and given.numel():
            phase.transfers.append(Sending(moved(given), to))
        if output is not None and output.numel():
            target = WriteTarget(output)
            if distance:
                phase.transfers.append(Receiving(moved(target.flat), come_from))
            else:
                target.flat.copy_(sources[rank])
            phase.then += target.stores
    return [phase]


# -- reductions that NCCL does not have ------------------------------------------------------------


def _exchanged_parts(
    parts: Sequence[Tensor], rank: int, size: int
) -> tuple[list[Transfer], list[Tensor]]:
    """Every rank sends its part `r` to rank r. What this rank then has of each, in their order:
    memory for size - 1 parts."""
    own = parts[rank]
    had = [own if peer == rank else torch.empty_like(own) for peer in range(size)]
    transfers: list[Transfer] = []
    for distance in range(1, size):
        to, come_from = (rank + distance) % size, (rank - distance) % size
        if parts[to].numel():
            transfers.append(Sending(moved(parts[to]), to))
        if own.numel():
            transfers.append(Receiving(moved(had[come_from]), come_from))
    return transfers, had


def _fold(reducing: Reducing, had: Sequence[Tensor], out: Tensor) -> None:
    """Combines in the ranks' order; `out` may be one of those that are combined."""
    assert reducing.combine is not None
    total = reducing.view(had[0])
    for other in had[1:]:
        total = reducing.combine(total, reducing.view(other))
    reducing.view(out).copy_(total)


def _combined_by_part(
    target: WriteTarget, inputs: Sequence[Tensor], reducing: Reducing, rank: int, size: int
) -> Plan:
    parts = [elements.flat(one) for one in inputs]
    transfers, had = _exchanged_parts(parts, rank, size)
    then: list[Callable[[], object]] = []
    if target.flat.numel():
        then = [lambda: _fold(reducing, had, target.flat), *target.stores]
    return [Batch(transfers, then)]


@dataclass(frozen=True)
class Planned:
    """`make` is called once, with the call's stream current. `blocks`: who waits for it waits on
    the host. As a `Body`, it is called with nothing to run on."""

    make: Callable[[], Plan]
    tensors: tuple[Tensor, ...]
    blocks: bool = False

    def __call__(self, _net: Any) -> Plan:
        return self.make()

    def plan(self) -> Plan:
        """`make`, in the modes of torch that the tensors need."""
        inference = any(tensor.is_inference() for tensor in self.tensors)
        with torch.inference_mode(inference), torch.no_grad():
            return self.make()


def together(calls: Sequence[Planned]) -> Planned:
    """Returns a call that does what these do."""
    return Planned(
        lambda: merged([call.make() for call in calls]),
        tuple(tensor for call in calls for tensor in call.tensors),
        any(call.blocks for call in calls),
    )


class DeviceStaging(Staging):
    """The copies of one call's tensors that do not lie in memory as NCCL needs them: made on the
    device, on the call's stream."""

    __slots__ = ()

    def _stand_in(self, tensor: Tensor) -> tuple[Tensor, None]:
        with torch.inference_mode(tensor.is_inference()):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), None

    def around(self, body: Any) -> Any:
        """The call with the copying before and after; the call itself if there is none."""
        if not self._copies or not isinstance(body, Planned):
            return body

        def make() -> Plan:
            self.load()
            plan = body.make()
            if plan:
                plan[-1].then.append(self.store)
            return plan

        mine = tuple(one for copy in self._copies for one in (copy.original, copy.scratch))
        return Planned(make, (*body.tensors, *mine), body.blocks)
