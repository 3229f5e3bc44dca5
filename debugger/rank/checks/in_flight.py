"""Buffers that the program reads, writes, resizes or frees between a call and its `wait()`.

Torch counts the writes into a tensor, so to look costs nothing. What it counts together is left
out, for it may well be another part that was written: views, which share their base's count. And
what a backend itself writes by torch's operations: outputs, and inputs of in-place calls that it
has to copy.

Nor may the program read such a buffer, or write it through a view. What a call writes is undefined
until it was waited for: a sum that reads it gets the old values, the new ones, or some of each.
Nothing in torch counts reads; so while such a call is under way,
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
from ...record.layout import CallSite
from ...record.ops import OF_METHOD, Operand
from ...record.signature import SUMS, Signature
from ...record.wording import at_site
from ..record import call_site
from ..record.describe import METHODS, tensors_in
from ..record.recorder import GroupRecord, Known, OwnFinding, Recorder
from ..torch_private.operator_calls import accesses, calls_with, depth, on_reads_past_operators
from .memory_layout import MemoryLayout, Range, of_array, of_storage, of_tensor, overlap

INFLIGHT = "inflight"
CHECK = "the check of buffers in flight"
"""In `Recorder.off`, where it has failed."""
_WRITTEN = {method: row.coalesced for method, row in OF_METHOD.items() if row.is_in_place}
IN_PLACE = frozenset(method for method, coalesced in _WRITTEN.items() if not coalesced)
COPIES = frozenset(_WRITTEN) - IN_PLACE
SCALED = SUMS - {"sum"}
"""Reduce ops for which gloo multiplies or divides the tensor in place, by torch's operations."""


@dataclass(slots=True)
class Held:
    """The inputs of one asynchronous call, as they were when it was made: each with torch's count
    of the writes into it, and its size in bytes."""

    tensors: list[tuple[Tensor, int, int]]
    recorder: Recorder
    record: GroupRecord
    known: Known
    seq: int
    site: int

    def check(self) -> None:
        """Tell the finding if one is not as it was."""
        for tensor, version, size_bytes in self.tensors:
            if tensor.untyped_storage().nbytes() != size_bytes:
                what = "resized or freed"
            elif tensor._version != version:
                what = "written"
            else:
                continue
            record = self.record
            rank = record.ranks[record.group_rank]
            signature = Signature.from_json(self.known.text)
            where, seq = record.place_of(signature, self.seq)
            message = (
                f"rank {rank}: a buffer of {signature}{where} was {what} between the call and its "
                f"wait(){_at(sys._getframe(1))}: what the others get of it is chance"
            )
            finding = OwnFinding(record, seq, "inflight_write", message, (rank,))
            finding.report(self.recorder, self.site)
            return


def _at(frame: FrameType) -> str:
    found = call_site.find(frame)
    if found is None:
        return ""
    code = found.f_code
    return at_site(CallSite(code.co_filename, found.f_lineno, code.co_name))


def hold(
    method: str, args: tuple[Any, ...], recorder: Recorder, record: GroupRecord, known: Known
) -> Held | None:
    """Returns what is to be looked at when the call is waited for; None where nothing can be told,
    or where that fails by its own fault.

    `args` are those of the group's `method`, whose newest call has just begun.
    """
    if CHECK in recorder.off:
        return None
    try:
        given = METHODS[method].given(args)
        if given is None or method in COPIES:
            return None
        if not all(type(tensor) in (Tensor, Parameter) for tensor in tensors_in(args[:2])):
            return None  # of a subclass, which may have no memory of its own
        written = () if given is args[0] else tensors_in(args[0])
        outputs = {tensor.untyped_storage().data_ptr() for tensor in written}
        in_place = method in IN_PLACE
        if in_place and Signature.from_json(known.text).reduce_op in SCALED:
            return None
        tensors = [
            (one, one._version, one.untyped_storage().nbytes())
            for one in tensors_in(given)
            if _counts_alone(one, in_place) and one.untyped_storage().data_ptr() not in outputs
        ]
        site = recorder.safe_site(sys._getframe(1))
        seq = record.slot.issued - 1
        return Held(tensors, recorder, record, known, seq, site) if tensors else None
    except Exception as error:
        recorder.check_failed(CHECK, error)
        return None


def _counts_alone(tensor: Tensor, in_place: bool) -> bool:
    """Whether its count of writes is its own, and only the program writes it so."""
    if tensor.layout != torch.strided or tensor.is_inference() or tensor._is_view():
        return False
    if tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes():
        return False  # a detached part of another tensor: they count together
    return not in_place or (tensor.is_contiguous() and tensor.is_cpu)


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
                work.hold(Held([], recorder, record, known, seq, 0))
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
    if _thread.entered and depth() == 1:
        _thread.entered = False
        _thread.mode.__exit__(None, None, None)


def forget() -> None:
    """Forgets, in a forked child, the calls that its parent has under way."""
    _thread.pending = []
    if sys.getprofile() is _hear:
        sys.setprofile(None)


def prepare() -> None:
    """Begins to note which tensors have given their memory to numpy."""
    on_reads_past_operators(_look_past_operators, _gave)


def _enter() -> None:
    if _thread.mode is None:
        _thread.mode = calls_with(_look)
    # A mode of the program's own must stay the innermost: it leaves whichever that is.
    if _thread.mode is None or depth():
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
        for given, how, whole in accesses(operator, args, kwargs):
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
        _look_at(lambda: _of(what, whole), sys._getframe(3))  # behind who stands before the read


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
        _look_at(lambda: numpy_accesses(frame, event, called), frame)


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


def numpy_accesses(frame: FrameType, event: str, called: Any) -> Iterator[Access]:
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
