"""Buffers that the program reads, or writes through a view, between a call and its `wait()`.

What a call writes is undefined until it was waited for: a sum that reads it gets the old values,
the new ones, or some of each. Nothing in torch counts reads; so while such a call is under way,
every operator that its thread calls is looked at, and none at any other time. Only the program's
own calls count: what torch.distributed, this layer or the autograd engine reads has its own order.

`t.numpy()` reads nothing: what is done with the array does, and torch has no part in that. Python
tells a profiler of each call of a method, with the array that it belongs to, and of those functions
of numpy that are written in Python. Unseen are numpy's operators (`array + 1`, `array[0]`) and
ufuncs, an array of which a tensor was made (`from_numpy`), and who takes an address.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ...errors.in_ranks import FindingRaised
from ...record.ops import OF_METHOD, Operand
from ...record.signature import Signature
from .. import torch_private
from ..record import call_site
from ..record.describe import METHODS, tensors_in
from ..record.recorder import GroupRecord, Known, OwnFinding, Recorder
from . import in_flight

_MOST_ARRAYS = 1000
_NOT_THE_PROGRAM = ("torchinductor_", "/torch/autograd/", "/torch/_inductor/", "/torch/_dynamo/")

READS = "the check of reads in flight"
"""In `Recorder.off`, where the check has failed."""


@dataclass
class PendingWrites:
    """An asynchronous call, and the memory that it writes."""

    work: weakref.ref[Any]
    writes: list[Range]
    record: GroupRecord
    known: Known
    seq: int
    pid: int = field(default_factory=os.getpid)

    @property
    def over(self) -> bool:
        """Whether the program has waited for it, or may know otherwise that it is complete."""
        work = self.work()
        return work is None or not work.holds


class ThreadReads(threading.local):
    """The calls that one thread has under way."""

    def __init__(self) -> None:
        self.pending: list[PendingWrites] = []
        self.mode: Any = None
        self.entered = False
        self.recorder: Recorder | None = None
        self.arrays: dict[int, weakref.ref[Any]] = {}
        """The arrays that this thread has got of tensors, and that live: a thousand of them at
        most."""


_thread = ThreadReads()


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
                work.hold(in_flight.Held([], recorder, record, known, seq, 0))
            _thread.pending.append(PendingWrites(weakref.ref(work), writes, record, known, seq))
            _enter()
            living = (reference() for reference in list(_thread.arrays.values()))
            if any(array is not None and _lies_in_pending(array) for array in living):
                _profile()
    except Exception as error:
        recorder.check_failed(READS, error)
    return work


def over() -> None:
    """A call was waited for: look no longer, if it was the last."""
    if not _thread.pending and not _thread.entered:
        return
    _thread.pending = [one for one in _thread.pending if not one.over]
    if _thread.pending:
        return
    if sys.getprofile() is _hear:
        sys.setprofile(None)
    # The program may have entered a mode of its own since, which must be left first.
    if _thread.entered and torch_private.depth() == 1:
        _thread.entered = False
        _thread.mode.__exit__(None, None, None)


def forget() -> None:
    """Forgets, in a forked child, the calls that its parent has under way."""
    _thread.pending = []
    if sys.getprofile() is _hear:
        sys.setprofile(None)


def prepare() -> None:
    """Begins to note which tensors have given their memory to numpy."""
    torch_private.on_reads_past_operators(_look_past_operators, _gave)


def _enter() -> None:
    if _thread.mode is None:
        _thread.mode = torch_private.calls_with(_look)
    # A mode of the program's own must stay the innermost: it leaves whichever that is.
    if _thread.mode is None or torch_private.depth():
        return
    _thread.entered = True
    _thread.mode.__enter__()


def written(method: str, args: tuple[Any, ...], record: GroupRecord, known: Known) -> list[Range]:
    """The memory that this call writes on this rank, where that can be told."""
    op = OF_METHOD[method]
    if op.is_in_place and op.root:
        root = Signature.from_json(known.text).root
        is_root = root == record.ranks[record.group_rank]
        mine = is_root == (op.root == "dst")  # else what becomes of it nobody says
    else:
        mine = True
    if not mine or not args:
        return []
    in_place = op.is_in_place or op.inputs is Operand.NONE
    outputs = [(one, of_tensor(one)) for one in tensors_in(args[0])]
    if not in_place and METHODS[method].gives_at != 1:
        return []
    if not all(place and tensor.is_contiguous() for tensor, place in outputs):
        return []
    given = [] if in_place else [one for one in tensors_in(args[1]) if one.numel()]
    sent = [place.range for place in map(of_tensor, given) if place is not None]
    if len(sent) != len(given):
        return []
    written = [place.range for _, place in outputs if place is not None]
    # What comes back to where it went out from is as it was.
    return [one for one in written if not any(overlap(one, own) for own in sent)]


def _look(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Looks at an operator of this thread's before it runs; raises the finding."""

    def of_operator() -> Iterator[Access]:
        for given, how, whole in torch_private.accesses(operator, args, kwargs):
            for place in map(of_tensor, tensors_in(given)):
                if place is not None:
                    yield place, how, whole

    if _thread.pending:
        _look_at(of_operator, sys._getframe(2))


def _look_past_operators(what: Any, whole: bool) -> None:
    """Before a tensor or a storage is read past all operators; raises the finding. Where an
    exception is on its way nobody waits any more, and a traceback may show the values of variables.
    """
    if _thread.pending and sys.exc_info()[0] is None:
        _look_at(lambda: _of(what, whole), sys._getframe(2))


def _of(what: Any, whole: bool) -> Iterator[Access]:
    place = None
    if isinstance(what, torch.Tensor):
        place = of_tensor(what)
    elif isinstance(what, torch.UntypedStorage):
        place = of_storage(what)
    if place is not None:
        yield place, "read", whole


def _gave(_tensor: Any, given: Any) -> None:
    """A tensor has given its memory; `given`, where it is an array, may be looked at later."""
    try:
        if is_array(given):
            arrays = _thread.arrays
            if len(arrays) >= _MOST_ARRAYS:
                arrays.pop(next(iter(arrays)))
            mark = id(given)
            arrays[mark] = weakref.ref(given, lambda _: arrays.pop(mark, None))
        if _thread.pending and (not is_array(given) or _lies_in_pending(given)):
            _profile()
    except Exception as error:
        if _thread.recorder is not None:
            _thread.recorder.check_failed(READS, error)


def _lies_in_pending(array: Any) -> bool:
    place = of_array(array).range
    return any(overlap(place, one) for pending in _thread.pending for one in pending.writes)


def _profile() -> None:
    """Hear of numpy's calls on this thread, unless the program has a profiler of its own."""
    if sys.getprofile() is None:
        sys.setprofile(_hear)


def _hear(frame: FrameType, event: str, called: Any) -> None:
    if _thread.pending:
        _look_at(lambda: accesses(frame, event, called), frame)


def _look_at(accesses: Callable[[], Iterable[Access]], frame: FrameType) -> None:
    recorder = _thread.recorder
    if recorder is None or READS in recorder.off:
        return
    try:
        for place, how, whole in accesses():
            lies = place.touches if whole else place.lies_in
            for pending in _thread.pending:
                if not pending.over and any(map(lies, pending.writes)):
                    _judge(pending, how, frame)
    except FindingRaised:
        raise
    except Exception as error:
        recorder.check_failed(READS, error)


def _judge(pending: PendingWrites, how: str, by: FrameType) -> None:
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
    finding.report(recorder, recorder.safe_site(frame))


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


Range = tuple[int, int]
"""Addresses in memory: of the first byte, and behind the last one."""
_MOST_ELEMENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """`start` is the address of the element whose indices are all 0; strides are in bytes."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    @property
    def range(self) -> Range:
        """From the first byte to behind the last one; there may be gaps. (0, 0): no element."""
        if 0 in self.shape:
            return 0, 0
        steps = [(size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)]
        first = self.start + sum(step for step in steps if step < 0)
        return first, self.start + sum(step for step in steps if step > 0) + self.item_bytes

    def lies_in(self, memory: Range) -> bool:
        """Whether all of it does, so that to look at any element is to look there."""
        first, end = self.range
        return first < end and memory[0] <= first and end <= memory[1]

    def touches(self, memory: Range) -> bool:
        """Whether an element lies there."""
        if not overlap(self.range, memory):
            return False
        sizes = zip(self.strides, self.shape, strict=True)
        expected = self.item_bytes
        for step, size in sorted((abs(step), size) for step, size in sizes if size > 1):
            if step != expected:
                break
            expected *= size
        else:
            return True  # there are no gaps
        if torch.Size(self.shape).numel() > _MOST_ELEMENTS:
            return False
        addresses = torch.full((), self.start, dtype=torch.int64, device="cpu")
        for size, step in zip(self.shape, self.strides, strict=True):
            addresses = addresses.unsqueeze(-1) + torch.arange(size, device="cpu") * step
        ends = addresses + self.item_bytes
        return bool(((addresses < memory[1]) & (ends > memory[0])).any())


def overlap(one: Range, other: Range) -> bool:
    """Whether a byte lies in both."""
    return one[0] < other[1] and other[0] < one[1]


def of_tensor(tensor: Tensor) -> MemoryLayout | None:
    """None where its memory is not the processor's, or not known."""
    if (
        type(tensor) not in (Tensor, Parameter)
        or not tensor.is_cpu
        or tensor.layout != torch.strided
        or tensor.numel() == 0
    ):
        return None
    size = tensor.element_size()
    steps = tuple(step * size for step in tensor.stride())
    return MemoryLayout(tensor.data_ptr(), tuple(tensor.shape), steps, size)


def of_storage(storage: torch.UntypedStorage) -> MemoryLayout | None:
    """Returns the layout of all of a storage."""
    size = storage.nbytes()
    if storage.device.type != "cpu" or not size:
        return None
    return MemoryLayout(storage.data_ptr(), (size,), (1,), 1)


def of_array(array: Any) -> MemoryLayout:
    """Returns the layout of an array of numpy's."""
    start = int(array.__array_interface__["data"][0])
    return MemoryLayout(start, tuple(array.shape), tuple(array.strides), int(array.itemsize))


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WHOLE = _names(
    "all any argmax argmin argsort clip copy cumprod cumsum dot dump dumps flatten max mean min "
    "nonzero prod ptp repeat round std sum tobytes tofile tolist var"
)
"""Methods that look at each element, and functions of the same names."""
_FUNCTIONS = _names(
    "allclose amax amin array_equal array_equiv assert_array_compare average bincount corrcoef cov "
    "diff histogram isclose median nanmax nanmean nanmin nanstd nansum nanvar norm percentile "
    "quantile savetxt sort trapezoid unique write_array"
)
_IN_PART = _names("choose compress item searchsorted take trace")
"""Methods that look at some elements, and functions of the same names."""
_SHOWN = _names(
    "array2string array_repr array_str _array_repr_implementation _array_str_implementation"
)
"""Functions that show an array, a large one in part."""
_WRITES = {"fill": True, "partition": True, "sort": True, "put": False}
"""Methods that write: whether each element."""

Access = tuple[MemoryLayout, str, bool]
"""The memory accessed, "read" or "written", and whether each element of it is."""


def is_array(given: Any) -> bool:
    """Whether it is one of numpy's, which the program has loaded then."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    return kind is not None and isinstance(given, kind)


def accesses(frame: FrameType, event: str, called: Any) -> Iterator[Access]:
    """The arrays whose elements this call looks at; given is what a profiler is."""
    if event == "c_call":
        yield from _of_method(called)
    elif event == "call":
        yield from _of_function(frame)


def _of_method(called: Any) -> Iterator[Access]:
    name = called.__name__
    array = getattr(called, "__self__", None)
    if name in _WHOLE or name in _IN_PART:
        how, whole = "read", name in _WHOLE
    elif name in _WRITES:
        how, whole = "written", _WRITES[name]
    else:
        return
    if is_array(array):
        yield of_array(array), how, whole


def _of_function(frame: FrameType) -> Iterator[Access]:
    code = frame.f_code
    name = code.co_name
    whole = name in _WHOLE or name in _FUNCTIONS
    if not whole and name not in _IN_PART and name not in _SHOWN:
        return
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] != "numpy":
        return
    given = frame.f_locals
    for parameter in code.co_varnames[: code.co_argcount]:
        if parameter != "out" and is_array(given.get(parameter)):
            yield of_array(given[parameter]), "read", whole
