"""The collectives on tensors: what every backend calls. Each picks its algorithm and runs it.

All tensors are contiguous, on the CPU, and checked by the caller. Results are written in place.
All ranks of the group make the same calls in the same order, with the same `Chooser`. Peers and
roots are ranks of the group. A group of one, and tensors without elements, exchange nothing. Raises
what `Transport.exchange` raises; the results are undefined then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..base.buffers import bytes_of, copy_bytes
from ..base.reduction import Reduction
from ..transports.base import Transport
from . import recursive
from .choice import ALGORITHMS, DEFAULT, Chooser


def all_reduce(
    net: Transport, tensor: Tensor, reduction: Reduction, choice: Chooser = DEFAULT
) -> None:
    """`tensor` becomes the reduction of all ranks' tensors, with the same bits on all of them."""
    if reduction.factor is not None:
        reduction.prepare(tensor, tensor)
    data = bytes_of(tensor)
    size = net.size
    if size > 1 and data:
        _chosen(net, "all_reduce", len(data), choice)(net, data, reduction)


def reduce(
    net: Transport, tensor: Tensor, root: int, reduction: Reduction, choice: Chooser = DEFAULT
) -> None:
    """On the root `tensor` becomes the reduction of all ranks' tensors; others keep theirs.

    For PREMUL_SUM ranks other than the root multiply into a copy.
    """
    prepared = reduction.prepare(tensor, tensor if net.rank == root else None)
    data = bytes_of(prepared)
    size = net.size
    if size > 1 and data:
        _chosen(net, "reduce", len(data), choice)(net, data, root, reduction)


def broadcast(net: Transport, tensor: Tensor, root: int, choice: Chooser = DEFAULT) -> None:
    """`tensor` becomes what it is on the root."""
    data = bytes_of(tensor)
    size = net.size
    if size > 1 and data:
        _chosen(net, "broadcast", len(data), choice)(net, data, root)


def all_gather(
    net: Transport, outputs: Sequence[Tensor], tensor: Tensor, choice: Chooser = DEFAULT
) -> None:
    """`outputs[r]` becomes the tensor of rank r.

    Parts may differ in size from rank to rank, as long as all ranks know all sizes. `outputs` may
    be views of one tensor, and `tensor` may be this rank's output itself.
    """
    parts, own = _views(net, outputs, tensor)
    if net.size == 1:
        copy_bytes(parts[0], own)
    elif total := sum(map(len, parts)):
        _chosen(net, "all_gather", total, choice)(net, parts, own)


def gather(
    net: Transport,
    outputs: Sequence[Tensor] | None,
    tensor: Tensor,
    root: int,
    choice: Chooser = DEFAULT,
) -> None:
    """On the root `outputs[r]` becomes the tensor of rank r; others give None. All of one size."""
    own = bytes_of(tensor)
    parts = None
    if net.rank == root:
        assert outputs is not None
        parts, own = _views(net, outputs, tensor)
        if net.size == 1:
            copy_bytes(parts[0], own)
    if net.size > 1 and own:
        _chosen(net, "gather", len(own), choice)(net, parts, own, root)


def scatter(
    net: Transport,
    output: Tensor,
    inputs: Sequence[Tensor] | None,
    root: int,
    choice: Chooser = DEFAULT,
) -> None:
    """`output` becomes `inputs[rank]` of the root; others give None. All of one size."""
    own = bytes_of(output)
    parts = None
    if net.rank == root:
        assert inputs is not None
        parts, own = _views(net, inputs, output)
        if net.size == 1:
            copy_bytes(own, parts[0])
    if net.size > 1 and own:
        _chosen(net, "scatter", len(own), choice)(net, own, parts, root)


def reduce_scatter(
    net: Transport,
    output: Tensor,
    inputs: Sequence[Tensor],
    reduction: Reduction,
    choice: Chooser = DEFAULT,
) -> None:
    """`output` becomes the reduction of all ranks' `inputs[rank]`. The inputs do not change.

    Parts may differ in size, as long as `inputs[r]` has the same size on all ranks. `output` shares
    no memory with the inputs, except that it may be `inputs[rank]` itself. For PREMUL_SUM the
    inputs are multiplied into copies.
    """
    if reduction.factor is not None:
        inputs = [reduction.prepare(part) for part in inputs]
    parts, own = _views(net, inputs, output)
    if net.size == 1:
        copy_bytes(own, parts[0])
    elif total := sum(map(len, parts)):
        algorithm = _chosen(net, "reduce_scatter", total, choice)
        algorithm(net, own, parts, reduction)


def all_to_all(
    net: Transport,
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    choice: Chooser = DEFAULT,
) -> None:
    """`outputs[r]` becomes what `inputs[rank]` is on rank r. Any sizes that agree pair by pair.

    The outputs share no memory with the inputs. Only the pairs know their sizes: ranks without any
    element take part in the exchange, too.
    """
    into, parts = [bytes_of(part) for part in outputs], [bytes_of(part) for part in inputs]
    if net.size == 1:
        copy_bytes(into[0], parts[0])
    else:
        _chosen(net, "all_to_all", 0, choice)(net, into, parts)


def barrier(net: Transport) -> None:
    """Returns when all ranks have called it."""
    recursive.barrier(net)


def _chosen(net: Transport, op: str, size_bytes: int, choice: Chooser) -> Any:
    return ALGORITHMS[op][choice.of(op, size_bytes, net.size, net.board is not None)]


def _views(
    net: Transport, parts: Sequence[Tensor], own: Tensor
) -> tuple[list[memoryview], memoryview]:
    """The bytes of one part per rank and of a rank's own tensor: one view where they are one."""
    views = [bytes_of(part) for part in parts]
    mine = parts[net.rank]
    if own.data_ptr() == mine.data_ptr():
        return views, views[net.rank]
    return views, bytes_of(own)
