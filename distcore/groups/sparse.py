"""all_reduce of sparse COO tensors, whose ranks differ in how many elements they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import call_text
from ..engine.base import Engine
from ..engine.session import Body
from .argument_checks import Caller

_SUM = "sum"


def all_reduce(
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
            total = _sum(net, mine.coalesce(), len(caller.ranks), engine)
            for one in tensors:
                one.copy_(total)

    return text, body


def _sum(net: Any, mine: Tensor, size: int, engine: Engine) -> Tensor:
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
