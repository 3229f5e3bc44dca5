"""Buffers that the program reads, or writes through a view, between a call and its `wait()`.

What a call writes is undefined until it was waited for: a sum that reads it gets the old values,
the new ones, or some of each. Nothing in torch counts reads; so while such a call is under way,
every operator that its thread calls is looked at, and none at any other time. Only the program's
own calls count: what torch.distributed, this layer or the autograd engine reads has its own order.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ...errors.in_ranks import FindingRaised
from ...record.signature import Signature
from .. import torch_private
from ..record import call_site
from ..record.describe import METHODS, tensors_in
from ..record.findings import OwnFinding
from ..record.recorder import GroupRecord, Known, Recorder
from . import in_flight

IN_PLACE = frozenset({"allreduce", "allreduce_coalesced", "recv", "recv_anysource"})
"""Methods that write what they are given, on every rank."""
AT_OTHERS = frozenset({"broadcast"})
"""The same, but for the root."""
AT_ROOT = frozenset({"reduce"})
"""The same, on the root alone: what becomes of it elsewhere nobody says."""
_MOST_ELEMENTS = 1_000_000
_NOT_THE_PROGRAM = ("torchinductor_", "/torch/autograd/", "/torch/_inductor/", "/torch/_dynamo/")

Range = tuple[int, int]
"""Addresses in memory: of the first byte, and behind the last one."""
READS = "the check of reads in flight"
"""In `Recorder.off`, where the check has failed."""


class Pending:
    """One asynchronous call, and the memory that it writes."""

    def __init__(
        self, work: Any, writes: list[Range], record: GroupRecord, known: Known, seq: int
    ) -> None:
        self.pid = os.getpid()
        self.work = weakref.ref(work)
        self.writes = writes
        self.record = record
        self.known = known
        self.seq = seq

    @property
    def over(self) -> bool:
        """Whether the program has waited for it, or may know otherwise that it is complete."""
        work = self.work()
        return work is None or not work.holds


class Thread(threading.local):
    """What one thread has under way."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        self.mode: Any = None
        self.entered = False
        self.recorder: Recorder | None = None


_thread = Thread()


def watch(
    work: Any,
    method: str,
    args: tuple[Any, ...],
    recorder: Recorder,
    record: GroupRecord,
    known: Known,
) -> Any:
    """Look at what this thread reads until it has waited for `work`, the handle of the group's
    newest call; returns the handle."""
    if READS in recorder.off:
        return work
    try:
        writes = written(method, args, record, known)
        if writes:
            _thread.recorder = recorder
            _thread.pending = [one for one in _thread.pending if not one.over]
            seq = record.slot.issued - 1
            if not work.holds:
                work.hold(in_flight.Held([], recorder, record, known, seq))
            _thread.pending.append(Pending(work, writes, record, known, seq))
            _enter()
    except Exception as error:
        recorder.check_failed(READS, error)
    return work


def over() -> None:
    """A call was waited for: look no longer, if it was the last."""
    if _thread.entered:
        _thread.pending = [one for one in _thread.pending if not one.over]
        # The program may have entered a mode of its own since, which must be left first.
        if not _thread.pending and torch_private.depth() == 1:
            _thread.entered = False
            _thread.mode.__exit__(None, None, None)


def _enter() -> None:
    torch_private.on_reads_past_operators(_look_at_whole)
    if _thread.mode is None:
        _thread.mode = torch_private.calls_with(_look)
    # A mode of the program's own must stay the innermost: it leaves whichever that is.
    if _thread.mode is None or torch_private.depth():
        return
    _thread.entered = True
    _thread.mode.__enter__()


def written(method: str, args: tuple[Any, ...], record: GroupRecord, known: Known) -> list[Range]:
    """The memory that this call writes on this rank, where that can be told."""
    if method in AT_OTHERS or method in AT_ROOT:
        root = Signature.from_json(known.text).root
        is_root = root == record.ranks[record.group_rank]
        mine = is_root == (method in AT_ROOT)
    else:
        mine = True
    if not mine or not args:
        return []
    in_place = method in IN_PLACE or method in AT_OTHERS or method in AT_ROOT
    outputs = list(tensors_in(args[0]))
    if not in_place and METHODS[method].gives_at != 1:
        return []
    if not all(_is_plain(tensor) and tensor.is_contiguous() for tensor in outputs):
        return []
    given = [] if in_place else [_range(tensor) for tensor in tensors_in(args[1])]
    # What comes back to where it went out from is as it was.
    return [one for one in map(_range, outputs) if not any(_overlap(one, own) for own in given)]


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, Parameter)
        and tensor.is_cpu
        and tensor.layout == torch.strided
        and tensor.numel() > 0
    )


def _range(tensor: Tensor) -> Range:
    start = tensor.data_ptr()
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + (last + 1) * tensor.element_size()


def _overlap(one: Range, other: Range) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _touches(tensor: Tensor, memory: Range) -> bool:
    """Whether an element of the tensor lies there."""
    if not _is_plain(tensor) or not _overlap(_range(tensor), memory):
        return False
    if tensor.is_contiguous():
        return True
    if tensor.numel() > _MOST_ELEMENTS:
        return False
    addresses = torch.full((), tensor.data_ptr(), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        steps = torch.arange(size) * (stride * tensor.element_size())
        addresses = addresses.unsqueeze(-1) + steps
    ends = addresses + tensor.element_size()
    return bool(((addresses < memory[1]) & (ends > memory[0])).any())


def _look(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before an operator of this thread's; raises the finding."""
    if _thread.pending:
        _look_at(lambda: torch_private.accesses(operator, args, kwargs), sys._getframe(2))


def _look_at_whole(tensor: Any) -> None:
    """Before all of a tensor is read past all operators; raises the finding. Where an exception is
    on its way nobody waits any more, and a traceback may show the values of variables."""
    if _thread.pending and sys.exc_info()[0] is None:
        _look_at(lambda: [(tensor, "read")], sys._getframe(2))


def _look_at(accesses: Callable[[], Iterable[tuple[Any, str]]], frame: FrameType) -> None:
    recorder = _thread.recorder
    if recorder is None or READS in recorder.off:
        return
    try:
        for given, how in accesses():
            for tensor in tensors_in(given):
                for pending in _thread.pending:
                    if not pending.over and any(_touches(tensor, one) for one in pending.writes):
                        _judge(pending, how, frame)
    except FindingRaised:
        raise
    except Exception as error:
        recorder.check_failed(READS, error)


def _judge(pending: Pending, how: str, by: FrameType) -> None:
    frame = _reader(by)
    recorder, work = _thread.recorder, pending.work()
    if frame is None or recorder is None or work is None or pending.pid != os.getpid():
        return
    if work.poll() and recorder.writer.calls > work.number + 1:
        return  # a later call may have told that this one is over, as a barrier of gloo's does
    record = pending.record
    rank = record.ranks[record.group_rank]
    signature = Signature.from_json(pending.known.text)
    where, seq = record.place_of(signature, pending.seq)
    message = (
        f"rank {rank}: a buffer that {signature}{where} writes was {how} between the call and its "
        f"wait(): {'what was read' if how == 'read' else 'what it holds then'} is chance"
    )
    finding = OwnFinding(record, seq, "inflight_write", message, (rank,), elsewhere=True)
    finding.tell(recorder, recorder.safe_site(frame))


def _reader(frame: FrameType | None) -> FrameType | None:
    """The program's own frame that called the operator; None where another code did, which knows
    what it does."""
    while frame is not None:
        name = frame.f_code.co_filename
        if call_site.is_distributed(name) or any(part in name for part in _NOT_THE_PROGRAM):
            return None
        if call_site.frame_kind(name) != call_site.OWN:
            return frame
        frame = frame.f_back
    return None
