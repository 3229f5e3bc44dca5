"""torch's operators for compiled code that look for a C++ backend below a group, opened to groups
in Python.

inductor's memory planning emits `all_gather_into_tensor_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from .. import torch_private

DEVICES = ("CPU", "CUDA")
Predicate = Callable[[Any], bool]
_serves: dict[str, list[Predicate]] = {}


def open_operators_to(serves: Predicate, names: Iterable[str] = ()) -> None:
    """Put ours of these names in front of torch's, by default all of them, for the groups of which
    `serves(group)` is true. What this torch does not have is left out."""
    for name in names or _KERNELS:
        of_name = _serves.setdefault(name, [])
        if serves not in of_name:
            of_name.append(serves)
        torch_private.in_front_of_operator(name, DEVICES, _KERNELS[name], of_name)


def _all_gather_into_tensor_out(
    group: Any,
    input: Tensor,  # noqa: A002 - torch's names
    _group_size: int,
    _group_name: str,
    *,
    out: Tensor,
) -> Tensor:
    options = torch_private.c10d.AllgatherOptions()
    options.asyncOp = True
    work = group._allgather_base(out, input.contiguous(), options)
    torch_private.register_work(out, work)
    return out


def _batch_p2p_ops(
    group: Any,
    ops: Sequence[str],
    peers: Sequence[int],
    tags: Sequence[int],
    tensors: Sequence[Tensor],
    _group_name: str,
) -> list[Tensor]:
    device = tensors[0].device
    group._start_coalescing(device)
    try:
        for op, peer, tag, tensor in zip(ops, peers, tags, tensors, strict=True):
            call = {"isend": group.send, "irecv": group.recv}[op]
            call([tensor], peer, tag)
    except BaseException:
        group._end_coalescing(device)
        raise
    work = group._end_coalescing(device)
    for tensor in tensors:
        torch_private.register_work(tensor, work)
    return list(tensors)


_KERNELS: dict[str, Callable[..., Any]] = {
    "all_gather_into_tensor_out": _all_gather_into_tensor_out,
    "batch_p2p_ops": _batch_p2p_ops,
}
