"""The words common to all forms of our record that other tools read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..record.ops import Operand, Pattern, op_of
from ..record.signature import Signature, Tensor
from ..record.snapshot import GroupKey

MOST_CALLS = 1 << 16
"""Of a rank: more than any ring holds."""


def group_word(key: GroupKey) -> str:
    """torch's name; a group that was made again under it has a number of its own, since tools know
    a group by its name."""
    name, again = key
    return f"{name}~{again}" if again else name


def sides(signature: Signature, ranks: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Inputs and outputs; what the record leaves out, since it follows from the other side, is
    filled in."""
    op, principal, others = op_of(signature.op), signature.tensors, signature.others
    if op.inputs is Operand.NONE:
        return (), principal
    if op.pattern is Pattern.SCATTER:
        return others, principal
    if others or op.outputs is Operand.NONE or op.pattern is Pattern.GATHER:
        return principal, others
    if op.pattern is Pattern.ALL_GATHER:
        return principal, [(dtype, (ranks, *shape)) for dtype, shape in principal]
    if op.pattern is Pattern.REDUCE_SCATTER:
        return principal, [
            (dtype, (prod(shape) // max(ranks, 1),)) for dtype, shape in _as_one(principal)
        ]
    return principal, principal


def elements(tensors: Sequence[Tensor]) -> int:
    """Counts the elements of all of them."""
    return sum(prod(shape) for _, shape in tensors)


def sides_as_one(signature: Signature, ranks: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The same, with a list of equal tensors, one for each rank, as the one that torch records."""
    inputs, outputs = sides(signature, ranks)
    op = op_of(signature.op)
    if not op.has_list or op.coalesced or op.pattern is Pattern.ALL_TO_ALL:
        return inputs, outputs
    return _as_one(inputs), _as_one(outputs)


def _as_one(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if len(tensors) < 2 or len(set(tensors)) > 1:
        return tensors
    dtype, shape = tensors[0]
    return [(dtype, (len(tensors), *shape))]
