"""The engine of mpi: each call is one of MPI's, on the tensors' own memory.

- Moving is of bytes. Where a call gives one tensor of all ranks' parts, MPI's collective works on
  it; a list of tensors is packed while it is small, and otherwise its parts are sent one by one, as
  are those of all_to_all: only so every part stays where it is.
- Reductions of `_MEET_BYTES` and more are MPI's blocking calls, which are up to twice as fast as
  the others, once all ranks have met: a rank that does not come is still found by the deadline.
- MPI counts in 31 bits. What has more bytes goes in pieces.

What every rank must decide alike is decided by what the ranks agree on (op, dtype, counts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..queued_engine import QueuedEngine
from ..reduction import Reduction
from ..session import Body, Session
from ..staging import Reach, Staging
from ..whole import whole_of
from .line import Line
from .operations import operation

_MEET_BYTES = 1024 * 1024
_PACKED_BYTES = 64 * 1024
_MOST_BYTES = 2**31 - 4096
"""In one call of MPI's; a multiple of every element's size."""
_TAG = 7


class MpiEngine(QueuedEngine):
    """See `engine.Engine`."""

    def __init__(self, mpi: Any, session: Session, line: Line, reach: Reach) -> None:
        super().__init__("mpi", session, reach)
        self._mpi = mpi
        self._comm = line.comm
        self._size = line.size
        self._rank = line.rank
        self._address = mpi.memory.fromaddress
        self._memory = self._bytes

    def _bytes(self, tensor: Tensor) -> Any:
        """The tensor's memory as a buffer of bytes."""
        _settle(tensor)
        return self._address(tensor.data_ptr(), tensor.nbytes)

    # -- reducing ----------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, reduction: Reduction) -> Body:
        op, datatype = operation(self._mpi, reduction)
        size_bytes = tensor.nbytes
        if not tensor.is_cpu:
            return self._beside(tensor, reduction)
        ready = reduction.factor is None and not reduction.divides
        if ready and 0 < size_bytes < _MEET_BYTES:
            comm, in_place = self._comm, self._mpi.IN_PLACE
            spec = [self._address(tensor.data_ptr(), size_bytes), datatype]
            return lambda net: net.run(size_bytes, tensor, comm.Iallreduce, in_place, spec, op)

        def body(net: Line) -> None:
            if reduction.factor is not None:
                reduction.prepare(tensor, tensor)
            for piece in _pieces(tensor):
                spec = [self._bytes(piece), datatype]
                if size_bytes < _MEET_BYTES:
                    net.run(size_bytes, tensor, self._comm.Iallreduce, self._mpi.IN_PLACE, spec, op)
                    continue
                net.meet()
                net.block(self._comm.Allreduce, self._mpi.IN_PLACE, spec, op)
            reduction.finish(tensor, self._size)

        return body

    def _beside(self, tensor: Tensor, reduction: Reduction) -> Body:
        """A tensor of a GPU: torch's kernels and ours reduce in main memory."""
        staging = Staging()
        copy = staging.take(tensor, True, True)
        return staging.around(self.all_reduce(copy, reduction))

    def reduce(self, tensor: Tensor, root: int, reduction: Reduction) -> Body:
        if not tensor.is_cpu:
            staging = Staging()
            copy = staging.take(tensor, True, root == self._rank)
            return staging.around(self.reduce(copy, root, reduction))
        op, datatype = operation(self._mpi, reduction)
        is_root = root == self._rank

        def body(net: Line) -> None:
            mine = reduction.prepare(tensor, tensor if is_root else None)
            for piece in _pieces(mine):
                self._reduce(net, piece, piece if is_root else None, root, op, datatype)
            if is_root:
                reduction.finish(tensor, self._size)

        return body

    def _reduce(
        self, net: Line, mine: Tensor, into: Tensor | None, root: int, op: Any, datatype: Any
    ) -> None:
        send: Any = [self._bytes(mine), datatype]
        receive: Any = None
        if into is not None:
            receive = [self._bytes(into), datatype]
            if into.data_ptr() == mine.data_ptr():
                send = self._mpi.IN_PLACE
        if mine.nbytes < _MEET_BYTES:
            net.run(mine.nbytes, (mine, into), self._comm.Ireduce, send, receive, op, root)
        else:
            net.meet()
            net.block(self._comm.Reduce, send, receive, op, root)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], reduction: Reduction
    ) -> Body:
        if not output.is_cpu:
            staging = Staging()
            copies = staging.inputs(inputs)
            target = staging.take(output, False, True)
            return staging.around(self.reduce_scatter(target, copies, reduction))
        op, datatype = operation(self._mpi, reduction)
        total_bytes = sum(one.nbytes for one in inputs)
        whole = whole_of(inputs)

        def body(net: Line) -> None:
            if total_bytes > _MOST_BYTES or (whole is None and total_bytes >= _MEET_BYTES):
                self._reduce_parts(net, output, inputs, reduction, op, datatype)
            elif total_bytes:
                source = torch.cat([one.view(-1) for one in inputs]) if whole is None else whole
                source = reduction.prepare(source)
                mine = output if whole is None or not _touch(output, whole) else output.clone()
                each = reduction.computed_as.itemsize
                send = [self._bytes(source), datatype]
                receive = [self._bytes(mine), datatype]
                counts = [one.nbytes // each for one in inputs]
                if total_bytes < _MEET_BYTES and len(set(counts)) == 1:
                    issue = self._comm.Ireduce_scatter_block
                    net.run(total_bytes, (source, mine), issue, send, receive, op)
                elif total_bytes < _MEET_BYTES:
                    issue = self._comm.Ireduce_scatter
                    net.run(total_bytes, (source, mine), issue, send, receive, counts, op)
                elif len(set(counts)) == 1:
                    net.meet()
                    net.block(self._comm.Reduce_scatter_block, send, receive, op)
                else:
                    net.meet()
                    net.block(self._comm.Reduce_scatter, send, receive, counts, op)
                if mine is not output:
                    output.copy_(mine)
            reduction.finish(output, self._size)

        return body

    def _reduce_parts(
        self,
        net: Line,
        output: Tensor,
        inputs: Sequence[Tensor],
        reduction: Reduction,
        op: Any,
        datatype: Any,
    ) -> None:
        """Part by part, each to the rank that it is for."""
        for root, part in enumerate(inputs):
            mine = reduction.prepare(part)
            into = _pieces(output) if root == self._rank else iter(())
            for piece in _pieces(mine):
                self._reduce(net, piece, next(into, None), root, op, datatype)

    # -- moving ------------------------------------------------------------------------------------

    def broadcast(self, tensor: Tensor, root: int) -> Body:
        size_bytes = tensor.nbytes
        byte, comm = self._mpi.BYTE, self._comm
        if 0 < size_bytes <= _MOST_BYTES:
            spec = [self._bytes(tensor), byte]
            return lambda net: net.run(size_bytes, tensor, comm.Ibcast, spec, root)

        def body(net: Line) -> None:
            for piece in _pieces(tensor):
                net.run(piece.nbytes, tensor, comm.Ibcast, [self._bytes(piece), byte], root)

        return body

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Body:
        total_bytes = sum(one.nbytes for one in outputs)
        whole = whole_of(outputs)
        byte = self._mpi.BYTE
        native = total_bytes <= (_PACKED_BYTES if whole is None else _MOST_BYTES)
        _settle_all(outputs, (tensor,))

        def body(net: Line) -> None:
            if not native:
                sends = [(peer, tensor) for peer in range(self._size)]
                self._exchange(net, sends, list(enumerate(outputs)))
            elif total_bytes:
                target = _empty_for(outputs) if whole is None else whole
                send: Any = [self._bytes(tensor), byte]
                if tensor.data_ptr() == outputs[self._rank].data_ptr() and whole is not None:
                    send = self._mpi.IN_PLACE
                counts = [one.nbytes for one in outputs]
                if len(set(counts)) == 1:
                    receive = [self._bytes(target), byte]
                    net.run(total_bytes, (tensor, target), self._comm.Iallgather, send, receive)
                else:
                    receive = [self._bytes(target), counts, _starts(counts), byte]
                    net.run(total_bytes, (tensor, target), self._comm.Iallgatherv, send, receive)
                if whole is None:
                    _unpack(target, outputs)

        return body

    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> Body:
        byte, size_bytes = self._mpi.BYTE, tensor.nbytes
        _settle_all(outputs or (), (tensor,))

        def body(net: Line) -> None:
            if size_bytes * self._size > _PACKED_BYTES:
                self._exchange(net, [(root, tensor)], list(enumerate(outputs or ())))
            elif size_bytes:
                send, receive = [self._bytes(tensor), byte], None
                target = None if outputs is None else _empty_for(outputs)
                if target is not None:
                    receive = [self._bytes(target), byte]
                net.run(size_bytes, (tensor, target), self._comm.Igather, send, receive, root)
                if outputs is not None and target is not None:
                    _unpack(target, outputs)

        return body

    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> Body:
        byte, size_bytes = self._mpi.BYTE, output.nbytes
        _settle_all(inputs or (), (output,))

        def body(net: Line) -> None:
            if size_bytes * self._size > _PACKED_BYTES:
                self._exchange(net, list(enumerate(inputs or ())), [(root, output)])
            elif size_bytes:
                send, receive = None, [self._bytes(output), byte]
                source = None
                if inputs is not None:
                    source = torch.cat([one.reshape(-1) for one in inputs])
                    send = [self._bytes(source), byte]
                net.run(size_bytes, (output, source), self._comm.Iscatter, send, receive, root)

        return body

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Body:
        _settle_all(inputs, outputs)
        sends, receives = list(enumerate(inputs)), list(enumerate(outputs))
        return lambda net: self._exchange(net, sends, receives)

    def barrier(self) -> Body:
        issue = self._comm.Ibarrier
        return lambda net: net.run(0, None, issue)

    def _exchange(
        self,
        net: Line,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[tuple[int, Tensor]],
    ) -> None:
        """Each part by itself, all at once; nobody sends a part without elements."""
        comm, byte = self._comm, self._mpi.BYTE
        me = self._rank
        requests = []
        total_bytes = 0
        address = self._address
        for peer, part in receives:
            if peer != me:
                for piece in _pieces(part):
                    size_bytes = piece.nbytes
                    total_bytes += size_bytes
                    spec = [address(piece.data_ptr(), size_bytes), byte]
                    requests.append(net.issue(comm.Irecv, spec, peer, _TAG))
        # Not all to rank 0 first.
        if self._size > 2:
            sends = sorted(sends, key=lambda one: (one[0] - me) % self._size)
        for peer, part in sends:
            if peer != me:
                for piece in _pieces(part):
                    size_bytes = piece.nbytes
                    total_bytes += size_bytes
                    spec = [address(piece.data_ptr(), size_bytes), byte]
                    requests.append(net.issue(comm.Isend, spec, peer, _TAG))
        own = [part for peer, part in sends if peer == me]
        for peer, part in receives:
            if peer == me and own and part.data_ptr() != own[0].data_ptr():
                part.view(-1).copy_(own[0].view(-1))
        net.run_all(total_bytes, requests, sends, receives)


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor, flat, in parts that MPI can count; none where it has no elements."""
    if not tensor.numel():
        return
    if tensor.nbytes <= _MOST_BYTES:
        yield tensor
        return
    flat = tensor.view(-1)
    step = _MOST_BYTES // 2 // tensor.element_size()
    for start in range(0, flat.numel(), step):
        yield flat[start : start + step]


def _empty_for(parts: Sequence[Tensor]) -> Tensor:
    return torch.empty(
        sum(part.numel() for part in parts), dtype=parts[0].dtype, device=parts[0].device
    )


def _unpack(packed: Tensor, into: Sequence[Tensor]) -> None:
    _settle(packed)
    for part, one in zip(torch.split(packed, [one.numel() for one in into]), into, strict=True):
        one.view(-1).copy_(part)


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:index]) for index in range(len(counts))]


def _touch(one: Tensor, other: Tensor) -> bool:
    begin, end = one.data_ptr(), one.data_ptr() + one.nbytes
    return begin < other.data_ptr() + other.nbytes and other.data_ptr() < end


def _settle_all(*lists: Sequence[Tensor]) -> None:
    for tensors in lists:
        for tensor in tensors:
            _settle(tensor)


def _settle(tensor: Tensor) -> None:
    """MPI does not know of streams: what this thread asked of a GPU before must be done."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
