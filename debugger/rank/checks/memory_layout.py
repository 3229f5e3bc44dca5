"""`--check tensors`: strided, overlapping and aliased tensors that the backend would get wrong.

What is unsafe was found by trial (torch 2.13). gloo hands the memory of most reductions and copies
to the network as it lies: from the first element on, as many as the tensor has, whatever its
strides. So gaps and overlaps are wrong on any rank, and any other order is wrong unless the tensors
it meets have the same. distcore's tcp copies by strides, but does not allow an input to lie where
another rank's output goes. Outputs that share memory are wrong everywhere. What works, and what the
backend refuses by itself, is nothing to this check.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ...record.ops import OF_METHOD, Operand, Pattern
from ...record.signature import Signature
from ...record.wording import by_device, ranks_text, verb
from ..record.describe import tensors_in
from ..record.recorder import GroupRecord, Known, OwnFinding, Recorder
from . import argument_checks

if TYPE_CHECKING:
    from ...record.dispute import Dispute

TENSORS = "tensors"
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
        if is_dense(self.shape, [abs(step) for step in self.strides], self.item_bytes):
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


def is_dense(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    """Whether elements, so far from each other as an item, fill one piece of memory, each with a
    place of its own, in any order."""
    for step, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if step != item:
                return False
            item *= size
    return True


class TensorCheck:
    """Looks at the tensors of one group's calls on one rank."""

    def __init__(self, recorder: Recorder, record: GroupRecord) -> None:
        self._recorder = recorder
        self._record = record
        self._backend = backend_of_cpu(record.backend)

    def before(self, method: str, args: tuple[Any, ...], known: Known, seq: int) -> None:
        """Tell the finding if the group's `method` would get these arguments wrong."""
        record = self._record
        wrong = unsafe(self._backend, record.group_rank, method, args)
        if wrong is None or argument_checks.expected(
            self._backend, method, args, len(record.ranks), record.group_rank
        ):
            return
        rank = record.ranks[record.group_rank]
        signature = Signature.from_json(known.text)
        where, numbered = record.place_of(signature, seq)
        message = f"rank {rank} gives {signature}{where} {wrong}"
        finding = OwnFinding(record, numbered, "unsafe_tensor", message, (rank,))
        finding.report(self._recorder, self._recorder.safe_site(sys._getframe(1)))


def backend_of_cpu(config: str) -> str:
    """The backend for tensors of the CPU: of "gloo", or of "cpu:gloo,cuda:nccl"."""
    parts = by_device(config)
    return parts.get("cpu", parts.get("", ""))


def unsafe(backend: str, group_rank: int, method: str, args: tuple[Any, ...]) -> str | None:
    """Tells what is wrong with the tensors of a call, as the end of a sentence; None where nothing
    is."""
    if not args:
        return None
    op = OF_METHOD[method]
    if op.outputs is Operand.LIST and not op.coalesced:
        shared = _shared(list(tensors_in(args[0])))
        if shared is not None:
            return f"outputs {shared[0]} and {shared[1]} in the same memory: one overwrites another"
    if not all(tensor.is_cpu for tensor in tensors_in(args[:2])):
        return None
    if backend == "gloo":
        return _unsafe_for_gloo(group_rank, method, args)
    if backend == "tcp":
        return _unsafe_for_tcp(group_rank, method, args)
    return None


def layout(backend: str, method: str, args: tuple[Any, ...]) -> str:
    """The order of elements in memory that all ranks must have in common; "" for the usual one."""
    if backend != "gloo" or not args:
        return ""
    op = OF_METHOD[method]
    if not ((op.is_in_place and not op.coalesced) or op.pattern is Pattern.SCATTER):
        return ""  # only else gloo takes the tensor's memory as it lies, on all ranks
    orders = [
        [stride if size > 1 else 0 for stride, size in zip(one.stride(), one.shape, strict=True)]
        for one in tensors_in(args[0])
        if one.layout is torch.strided and not one.is_contiguous()
    ]
    return str(orders) if orders else ""


def settle(
    call: Signature, orders: Sequence[str], ranks: Sequence[int], place: str
) -> Dispute | None:
    """The finding where the `layout` of one call is not the same on all ranks."""
    parties: dict[str, list[int]] = {}
    for rank, order in zip(ranks, orders, strict=True):
        parties.setdefault(order, []).append(rank)
    if len(parties) < 2:
        return None
    from ...record import dispute  # what agrees at DETAIL has loaded it

    result = dispute.vote(parties, 0)
    parts = [
        f"{ranks_text(members)} {verb(members, 'has', 'have')} "
        + (f"strides {order[1:-1]}" if order else "a contiguous one")
        for order, members in result.parties
    ]
    message = (
        f"{call} {place}: gloo takes each rank's tensor as it lies in memory, and they lie in "
        f"different order: {'; '.join(parts[:4])}; use contiguous()"
    )
    return dispute.Dispute("unsafe_tensor", message, result.culprits, result.others)


def _unsafe_for_gloo(group_rank: int, method: str, args: tuple[Any, ...]) -> str | None:
    op = OF_METHOD[method]
    if op.is_in_place:
        for tensor in tensors_in(args[0]):
            if tensor.is_neg():  # torch hands on a copy of it
                if _writes(group_rank, method, args):
                    return "a tensor with a pending negation, which gloo loses: use resolve_neg()"
            elif not op.coalesced and not _is_dense(tensor):
                return _gaps(tensor)
    elif op.pattern is Pattern.SCATTER:
        return _unsafe_parts(group_rank, args, "scatters")
    elif op.form == (Pattern.REDUCE_SCATTER, False):
        return _unsafe_parts(group_rank, args, "reduces")
    elif op.form == (Pattern.ALL_TO_ALL, True):
        output, given = args[0], args[1]
        if _overlap(output, given):
            return "an output that lies in the input: what is received overwrites what is sent"
        if not _is_refused(given) and not _same_order(output, given):
            return f"an output with strides {output.stride()}, which gloo ignores: use contiguous()"
    return None


def _unsafe_parts(group_rank: int, args: tuple[Any, ...], verb: str) -> str | None:
    """Checks one output, and a list of inputs of which one is for this rank itself."""
    parts = list(tensors_in(args[1]))
    for output in tensors_in(args[0]):
        if not _is_dense(output):
            return _gaps(output)
        if verb == "scatters":
            for part in parts:
                if not _is_dense(part):
                    return _gaps(part)
                if part.is_neg():
                    return "a tensor with a pending negation, which gloo loses: use resolve_neg()"
        own = parts[group_rank] if group_rank < len(parts) else None
        # gloo copies inputs with gaps, into the usual order.
        if own is not None and not _same_order(output, own if _is_dense(own) else None):
            return (
                f"an output with strides {output.stride()} and inputs with strides {own.stride()}: "
                f"gloo {verb} them as they lie in memory; use contiguous()"
            )
        if verb == "reduces":
            for index, part in enumerate(parts):
                if index != group_rank and _overlap(output, part):
                    return f"an output that lies in input {index}, which is still to be sent"
    return None


def _unsafe_for_tcp(group_rank: int, method: str, args: tuple[Any, ...]) -> str | None:
    op = OF_METHOD[method]
    if op.form == (Pattern.ALL_TO_ALL, True):
        output, given = args[0], args[1]
        if _overlap(output, given) and not _identical(output, given):
            return "an output that overlaps the input, but not as a whole"
        return None
    if op.coalesced or op.pattern is not Pattern.ALL_GATHER:
        return None
    if op.outputs is Operand.WHOLE:
        output, given = args[0], args[1]
        if output.is_contiguous() and given.numel():
            output = output.view(-1)[group_rank * given.numel() :][: given.numel()]
        outputs, own = [args[0]], output
    else:
        given = next(tensors_in(args[1]), None)
        outputs = list(tensors_in(args[0]))
        own = outputs[group_rank] if group_rank < len(outputs) else None
    if given is None or own is None or _starts_alike(own, given):
        return None
    if any(_overlap(one, given) for one in outputs):
        return "an input that lies where another rank's output goes"
    return None


def _is_refused(given: Tensor) -> bool:
    """Whether gloo says by itself that an all-to-all cannot take this input."""
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    dims = (None, 4, 5)
    return not any(
        (dim is None or given.dim() == dim) and given.is_contiguous(memory_format=form)
        for form, dim in zip(formats, dims, strict=True)
    )


def _writes(group_rank: int, method: str, args: tuple[Any, ...]) -> bool:
    """Whether this rank's tensor receives the result of a call in place."""
    role = OF_METHOD[method].root
    if not role:
        return True
    root = int(getattr(args[1], "rootRank", args[1])) if len(args) > 1 else 0
    return (root == group_rank) == (role == "dst")


def _gaps(tensor: Tensor) -> str:
    return (
        f"a tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()}: gloo takes "
        f"{tensor.numel()} elements as they lie in memory, which are not the tensor's; "
        "use contiguous()"
    )


def _is_dense(tensor: Tensor) -> bool:
    """See `is_dense`."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return True
    return is_dense(tensor.shape, tensor.stride(), 1)


def _same_order(output: Tensor, other: Tensor | None) -> bool:
    """Whether the elements of both lie in memory in one order; None: in the usual one."""
    if other is None or other.is_contiguous() or output.is_contiguous():
        return output.is_contiguous() and (other is None or other.is_contiguous())
    return output.dim() != other.dim() or all(
        mine == its
        for mine, its, size, its_size in zip(
            output.stride(), other.stride(), output.shape, other.shape, strict=True
        )
        if size > 1 and its_size > 1
    )


def _range(tensor: Tensor) -> Range | None:
    """The memory of a contiguous tensor that is not empty, as addresses; None of others."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous() or not tensor.numel():
        return None
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the two certainly have an element's memory in common."""
    first, second = _range(one), _range(other)
    if first is None or second is None:
        return bool(one.numel()) and _identical(one, other)
    return overlap(first, second)


def _identical(one: Tensor, other: Tensor) -> bool:
    return _starts_alike(one, other) and one.stride() == other.stride()


def _starts_alike(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.numel() == other.numel()


def _shared(outputs: Sequence[Tensor]) -> tuple[int, int] | None:
    """Two of the outputs that have memory in common."""
    ranges = sorted(
        (*found, index)
        for index, tensor in enumerate(outputs)
        if (found := _range(tensor)) is not None
    )
    for (_, end, index), (start, _, other) in pairwise(ranges):
        if start < end:
            return min(index, other), max(index, other)
    return None
