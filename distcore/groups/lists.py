"""Calls of more than one dense tensor a rank: several tensors, and sparse ones in all_reduce.

torch's interface allows several tensors a rank, and gloo has them: each rank's own are put together
first, and every one of them gets the result. What travels is what one tensor a rank would be; ranks
may differ in how many they have, but for all_gather. Sparse (COO) tensors may differ in how many
elements they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import call_text
from ..base.reduction import Reduction
from ..engine.base import Body, Engine
from ..engine.staging import Parts
from . import arguments
from .arguments import Caller

_WHOLE_OPS = ("sum", "product", "min", "max", "band", "bor", "bxor")
"""Reduce ops whose result is the same however the elements are put together."""


def checked(caller: Caller, given: Any, argument: str = "tensors") -> list[Tensor]:
    """A list of tensors that are alike. Raises ValueError or TypeError."""
    if not isinstance(given, list | tuple):
        caller.wrong_type(argument, "a list of tensors", type(given).__name__)
    if not given:
        caller.wrong(argument, "at least one tensor", "none", "requires non-empty tensor list")
    first = given[0]
    for index, one in enumerate(given):
        name = f"{argument}[{index}]"
        if isinstance(one, Tensor) and isinstance(first, Tensor) and one.layout is not first.layout:
            words = f"invalid tensor layout at index {index}"
            caller.wrong(name, f"the layout of {argument}[0]", one.layout, words)
        if one.layout is torch.strided:
            arguments.tensor(caller, name, one, written=True)
        arguments.same_dtype(caller, name, one, f"{argument}[0]", first)
        if one.shape != first.shape:
            expected = f"{arguments.shown(first)}, as {argument}[0]"
            caller.wrong(
                name, expected, arguments.shown(one), f"invalid tensor size at index {index}"
            )
        if not one.is_cpu:
            caller.wrong(name, "one tensor a rank, or several on the CPU", f"one on {one.device}")
    return list(given)


def all_reduce(
    caller: Caller,
    tensors: Sequence[Tensor],
    kind: int,
    reduction: Reduction,
    engine: Engine,
) -> tuple[str, Body]:
    """The call's text and body: each gets the reduction of all tensors of all ranks. ValueError for
    a reduce op that cannot be put together of parts."""
    op = call_text.REDUCE_OPS.get(kind, str(kind))
    if op not in _WHOLE_OPS:
        caller.wrong("op", f"one of {', '.join(_WHOLE_OPS)} for several tensors a rank", op)
    first = tensors[0]
    total = torch.empty(first.shape, dtype=first.dtype, device="cpu")
    reduce = engine.all_reduce(total, reduction)

    def body(net: Any) -> None:
        with torch.no_grad():
            total.copy_(first)
            for one in tensors[1:]:
                reduction.combine(total, one.detach().contiguous())
            reduce(net)
            for one in tensors:
                one.copy_(total)

    return call_text.reducing(caller.call, kind, first.dtype, first.numel()), body


def broadcast(
    caller: Caller, tensors: Sequence[Tensor], root: int, which: int, engine: Engine
) -> tuple[str, Body]:
    """Broadcasts `tensors[which]` of group rank `root` over several devices."""
    chosen = tensors[which]
    room = torch.empty(chosen.shape, dtype=chosen.dtype, device="cpu")
    send = engine.broadcast(room, root)

    def body(net: Any) -> None:
        with torch.no_grad():
            room.copy_(chosen)
            send(net)
            for one in tensors:
                one.copy_(room)

    src = caller.ranks[root]
    return call_text.rooted(caller.call, "src", src, chosen.dtype, chosen.numel()), body


def all_gather(
    caller: Caller, outputs: Sequence[Any], inputs: Sequence[Tensor], engine: Engine
) -> tuple[str, Body, list[Tensor]]:
    """The same, and what is written: each list of outputs gets all inputs of all ranks, by rank."""
    size = len(caller.ranks)
    if len(outputs) != len(inputs):
        words = "requires input/output tensor lists to have the same length"
        caller.wrong("tensor_list", f"{len(inputs)} lists, one for each input", len(outputs), words)
    each = size * len(inputs)
    for index, row in enumerate(outputs):
        name = f"tensor_list[{index}]"
        if len(row) != each:
            words = (
                f"invalid output tensor list at index {index} (expected length {each}, "
                f"got {len(row)})"
            )
            caller.wrong(name, f"{each} tensors, {len(inputs)} for each rank", len(row), words)
        arguments.tensors(caller, name, row, written=True)
        arguments.counts(caller, name, row, "tensor", inputs[0])
    count = inputs[0].numel()
    mine = torch.empty(len(inputs) * count, dtype=inputs[0].dtype, device="cpu")
    every = torch.empty(size * mine.numel(), dtype=mine.dtype, device="cpu")
    gather = engine.all_gather(Parts.even(every, size), mine)

    def body(net: Any) -> None:
        with torch.no_grad():
            mine.copy_(torch.cat([one.detach().reshape(-1) for one in inputs]))
            gather(net)
            for row in outputs:
                for one, part in zip(row, every.view(each, count), strict=True):
                    one.copy_(part.view(one.shape))

    text = call_text.moving(caller.call, mine.dtype, mine.numel())
    return text, body, [one for row in outputs for one in row]


_SUM = "sum"


def all_reduce_sparse(
    caller: Caller, tensors: Sequence[Tensor], kind: int, engine: Engine
) -> tuple[str, Body]:
    """The call's text, and its body: each of the alike tensors gets the sum of those of all ranks.
    ValueError for another reduce op.

    Each rank gathers all ranks' element counts, then their indices and values, padded to the
    longest: about `size` times the longest rank's bytes. As gloo does.
    """
    tensor = tensors[0]
    op = call_text.REDUCE_OPS.get(kind, str(kind))
    if op != _SUM:
        caller.wrong(
            "op", "SUM, the only one for sparse tensors", op, "unsupported reduction operation"
        )
    if not tensor.is_cpu:
        caller.wrong("tensor", "a sparse tensor on the CPU", f"one on {tensor.device}")
    shape = "x".join(map(str, tensor.shape))
    dtype = call_text.dtype_name(tensor.dtype)
    text = f"all_reduce({op}, sparse {dtype} {shape} with {tensor.sparse_dim()} sparse dimensions)"

    def body(net: Any) -> None:
        with torch.no_grad():
            # Not through detach(): a sparse alias does not share where the elements are.
            mine = tensor.detach()
            for one in tensors[1:]:
                mine = mine + one.detach()
            total = _sum_sparse(net, mine.coalesce(), len(caller.ranks), engine)
            for one in tensors:
                one.copy_(total)

    return text, body


def _sum_sparse(net: Any, mine: Tensor, size: int, engine: Engine) -> Tensor:
    count = torch.tensor([mine._nnz()], device="cpu")
    counts = [torch.empty_like(count) for _ in range(size)]
    engine.all_gather(counts, count)(net)
    longest = int(max(int(one) for one in counts))
    parts = []
    # Elements come first in both, so that the padding is at the end of each part.
    for given in (mine.indices().t(), mine.values()):
        padded = torch.zeros((longest, *given.shape[1:]), dtype=given.dtype, device="cpu")
        padded[: given.shape[0]].copy_(given)
        gathered = [torch.empty_like(padded) for _ in range(size)]
        engine.all_gather(gathered, padded)(net)
        parts.append(torch.cat([one[: int(n)] for one, n in zip(gathered, counts, strict=True)]))
    return torch.sparse_coo_tensor(
        parts[0].t(), parts[1], mine.shape, device="cpu", check_invariants=True
    ).coalesce()
