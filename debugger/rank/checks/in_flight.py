"""Buffers that the program writes, resizes or frees between a call and its `wait()`.

Torch counts the writes into a tensor, so to look costs nothing. What it counts together is left
out, for it may well be another part that was written: views, which share their base's count. And
what a backend itself writes by torch's operations: outputs, and inputs of in-place calls that it
has to copy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ...record.ops import OF_METHOD
from ...record.signature import SUMS, Signature
from ...record.snapshot import CallSite
from ...record.wording import at_site
from ..record import call_site
from ..record.describe import METHODS, tensors_in
from ..record.recorder import GroupRecord, Known, OwnFinding, Recorder

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


def held(
    method: str, args: tuple[Any, ...], recorder: Recorder, record: GroupRecord, known: Known
) -> Held | None:
    """`hold` of the group's newest call; None where that fails by its own fault."""
    if CHECK in recorder.off:
        return None
    try:
        return hold(method, args, recorder, record, known, record.slot.issued - 1)
    except Exception as error:
        recorder.check_failed(CHECK, error)
        return None


def hold(
    method: str,
    args: tuple[Any, ...],
    recorder: Recorder,
    record: GroupRecord,
    known: Known,
    seq: int,
) -> Held | None:
    """Returns what is to be looked at when the call is waited for; None where nothing can be told.

    `args` are those of the group's `method`, which has just begun.
    """
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
        (tensor, tensor._version, tensor.untyped_storage().nbytes())
        for tensor in tensors_in(given)
        if _counts_alone(tensor, in_place) and tensor.untyped_storage().data_ptr() not in outputs
    ]
    site = recorder.safe_site(sys._getframe(1))
    return Held(tensors, recorder, record, known, seq, site) if tensors else None


def _counts_alone(tensor: Tensor, in_place: bool) -> bool:
    """Whether its count of writes is its own, and only the program writes it so."""
    if tensor.layout != torch.strided or tensor.is_inference() or tensor._is_view():
        return False
    if tensor.numel() * tensor.element_size() != tensor.untyped_storage().nbytes():
        return False  # a detached part of another tensor: they count together
    return not in_place or (tensor.is_contiguous() and tensor.is_cpu)
