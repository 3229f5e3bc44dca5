"""What torch and Kineto call what we call otherwise, and what is common to all forms of our record
that other tools read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..record.signature import Signature, Tensor
from ..record.snapshot import GroupKey
from .flight_recorder import DTYPES

MOST_CALLS = 1 << 16
"""Of a rank: more than any ring holds."""
TORCHS_DTYPES = {ours: torchs for torchs, ours in DTYPES.items()}
"""Our names of dtypes, and torch's in its dumps and traces."""
KINETOS_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "all_to_all_single": "all_to_allv",
    "all_reduce_coalesced": "allreduce_coalesced",
    "monitored_barrier": "barrier",
}
"""Our names of ops, and those of `record_param_comms`."""
_LISTS = frozenset({"all_gather", "gather", "reduce_scatter", "scatter"})


def group_word(key: GroupKey) -> str:
    """torch's name; a group that was made again under it has a number of its own, since tools know
    a group by its name."""
    name, again = key
    return f"{name}~{again}" if again else name


def sides(signature: Signature, ranks: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Inputs and outputs; what the record leaves out, since it follows from the other side, is
    filled in."""
    op, principal, others = signature.op, signature.tensors, signature.others
    match op:
        case "scatter":
            return others, principal
        case "recv":
            return (), principal
        case "all_gather":
            return principal, others or _times(principal, ranks)
        case "all_gather_into_tensor":
            return principal, others or _times(principal, ranks)
        case "reduce_scatter" | "reduce_scatter_tensor":
            return principal, others or _divided(principal, ranks)
        case "gather":
            return principal, others
        case "send" | "barrier" | "monitored_barrier":
            return principal, ()
        case _:
            return principal, others or principal


def elements(tensors: Sequence[Tensor]) -> int:
    """Of all of them."""
    return sum(prod(shape) for _, shape in tensors)


def sides_as_one(signature: Signature, ranks: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The same, with a list of equal tensors, one for each rank, as the one that torch records."""
    inputs, outputs = sides(signature, ranks)
    if signature.op not in _LISTS:
        return inputs, outputs
    return _as_one(inputs), _as_one(outputs)


def _as_one(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if len(tensors) < 2 or len(set(tensors)) > 1:
        return tensors
    dtype, shape = tensors[0]
    return [(dtype, (len(tensors), *shape))]


def _times(tensors: Sequence[Tensor], ranks: int) -> Sequence[Tensor]:
    return [(dtype, (ranks, *shape)) for dtype, shape in tensors]


def _divided(tensors: Sequence[Tensor], ranks: int) -> Sequence[Tensor]:
    return [(dtype, (prod(shape) // max(ranks, 1),)) for dtype, shape in _as_one(tensors)]
