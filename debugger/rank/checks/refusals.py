"""The calls that a backend refuses at once, for their arguments: the ranks need not agree on those.

Such a call goes to its backend at once, whose error the program gets from the call, as without this
layer; the other ranks never meet it. What gloo refuses was found by trial (torch 2.13); what is
wrong but is taken (by gloo, the splits of an all-to-all) is no matter of this file. Where a backend
takes after all what is expected to be refused, the ranks agree on it a moment later: nothing is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ...record.ops import OF_METHOD, Op, Pattern
from ..record.describe import tensors_in

Arguments = tuple[Any, ...]

STRICT = {"gloo": True, "tcp": False, "mpi": False}
"""By backend, whether it compares shapes. distcore's compare numbers of elements; those of a list
may differ where each rank has its own, and this rank's own must fit. Of all others nothing is
foretold."""


class Call:
    """The arguments of one method, in a group of `size` ranks of which this is the one with number
    `rank`."""

    def __init__(self, args: Arguments, size: int, rank: int, strict: bool) -> None:
        self.args = args
        self.size = size
        self.rank = rank
        self.strict = strict

    def form(self, tensor: Tensor) -> tuple[object, ...]:
        """Returns what tensors must have in common."""
        return (tensor.dtype, tensor.layout, tensor.shape if self.strict else None)

    def alike(self, tensors: Sequence[Tensor], other: Tensor) -> bool:
        return all(self.form(tensor) == self.form(other) for tensor in tensors)

    def own_fits(self, row: Sequence[Tensor], other: Tensor) -> bool:
        """Whether this rank's own of a list with one for each has as many elements."""
        return row[self.rank].numel() == other.numel()

    def is_root(self, position: int) -> bool | None:
        """Whether this rank is the root; None where no rank is."""
        given: Any = self.args[position] if len(self.args) > position else 0
        root = int(getattr(given, "rootRank", given))
        return root == self.rank if 0 <= root < self.size else None

    def root_tensor(self) -> int:
        """Returns which of the tensors the root sends, or gets."""
        return int(getattr(self.args[1], "rootTensor", 0)) if len(self.args) > 1 else 0

    def parts(self, of: Tensor, splits: Sequence[int]) -> list[int] | None:
        """Elements for each rank; None where the splits are not those of this tensor."""
        rows = of.shape[0] if of.dim() else 1
        if not splits and rows % self.size:
            return None
        counts = list(splits) or [rows // self.size] * self.size
        if len(counts) != self.size or min(counts) < 0 or sum(counts) != rows:
            return None
        return [count * (of.numel() // rows if rows else 0) for count in counts]

    def whole_of(self, whole: Tensor, part: Tensor) -> bool:
        """Whether one tensor has a part like the other for each rank, one below the other."""
        if whole.dtype != part.dtype:
            return False
        if not self.strict:
            return whole.numel() == part.numel() * self.size
        rows = part.shape[0] * self.size if part.dim() else -1
        return tuple(whole.shape) == (rows, *part.shape[1:])


def _all_reduce(call: Call) -> bool:
    tensors, *options = call.args
    if any(tensor.is_sparse for tensor in tensors) and options:
        op = getattr(options[0], "reduceOp", options[0])
        if op != dist.ReduceOp.SUM:
            return False
    return _alike(call)


def _alike(call: Call) -> bool:
    tensors = call.args[0]
    return bool(tensors) and call.alike(tensors, tensors[0])


def _all_reduce_coalesced(call: Call) -> bool:
    dtypes = {tensor.dtype for tensor in call.args[0]}
    return len(dtypes) == 1 or (len(dtypes) > 1 and not call.strict)


def _broadcast(call: Call) -> bool:
    if call.is_root(1) is None or not _alike(call):
        return False
    return 0 <= call.root_tensor() < len(call.args[0])


def _reduce(call: Call) -> bool:
    return call.is_root(1) is not None and len(call.args[0]) == 1 and call.root_tensor() == 0


def _all_gather(call: Call) -> bool:
    outputs, given = call.args[:2]
    fits = call.own_fits if len(given) == 1 else _as_many
    return bool(given) and len(outputs) == len(given) and all(
        len(row) == call.size * len(given)
        and call.alike([*row, *given], given[0])
        and fits(row, given[0])
        for row in outputs
    )  # fmt: skip


def _as_many(tensors: Sequence[Tensor], other: Tensor) -> bool:
    return all(tensor.numel() == other.numel() for tensor in tensors)


def _rooted(call: Call, many: Any, one: Any) -> bool:
    """A gather or a scatter: the root alone has `many`, for each rank like its only `one`."""
    is_root = call.is_root(2)
    if is_root is None or len(one) != 1:
        return False
    if not is_root:
        return len(many) == 0
    if len(many) != 1 or len(many[0]) != call.size:
        return False
    return call.alike(many[0], one[0]) and _as_many(many[0], one[0])


def _gather(call: Call) -> bool:
    return _rooted(call, call.args[0], call.args[1])


def _scatter(call: Call) -> bool:
    return _rooted(call, call.args[1], call.args[0])


def _reduce_scatter(call: Call) -> bool:
    outputs, given = call.args[:2]
    return bool(outputs) and len(outputs) == len(given) and all(
        len(row) == call.size and call.alike(row, output) and call.own_fits(row, output)
        for row, output in zip(given, outputs, strict=True)
    )  # fmt: skip


def _into_one(call: Call) -> bool:
    return call.whole_of(call.args[0], call.args[1])


def _from_one(call: Call) -> bool:
    return call.whole_of(call.args[1], call.args[0])


def _into_several(call: Call) -> bool:
    wholes, parts = call.args[:2]
    return len(wholes) == len(parts) and all(map(call.whole_of, wholes, parts))


def _from_several(call: Call) -> bool:
    parts, wholes = call.args[:2]
    return len(wholes) == len(parts) and all(map(call.whole_of, wholes, parts))


def _all_to_all(call: Call) -> bool:
    return len(call.args[0]) == len(call.args[1]) == call.size


def _all_to_all_single(call: Call) -> bool:
    output, given, *splits = call.args
    if call.strict:
        return True
    targets, sources = (
        call.parts(of, splits[number] if len(splits) > number else ())
        for number, of in enumerate((output, given))
    )
    if targets is None or sources is None or output.dtype != given.dtype:
        return False
    return targets[call.rank] == sources[call.rank]


_RIGHT: dict[tuple[Pattern, bool], Callable[[Call], bool]] = {
    (Pattern.ALL_REDUCE, False): _all_reduce,
    (Pattern.BROADCAST, False): _broadcast,
    (Pattern.REDUCE, False): _reduce,
    (Pattern.ALL_GATHER, False): _all_gather,
    (Pattern.ALL_GATHER, True): _into_one,
    (Pattern.GATHER, False): _gather,
    (Pattern.SCATTER, False): _scatter,
    (Pattern.REDUCE_SCATTER, False): _reduce_scatter,
    (Pattern.REDUCE_SCATTER, True): _from_one,
    (Pattern.ALL_TO_ALL, False): _all_to_all,
    (Pattern.ALL_TO_ALL, True): _all_to_all_single,
}
_RIGHT_OF_SEVERAL: dict[tuple[Pattern, bool], Callable[[Call], bool]] = {
    (Pattern.ALL_REDUCE, False): _all_reduce_coalesced,
    (Pattern.ALL_GATHER, True): _into_several,
    (Pattern.REDUCE_SCATTER, True): _from_several,
}
"""By `Op.form`, whether the arguments are right for a backend; any other counts as right."""


def expected(backend: str, method: str, args: Arguments, size: int, rank: int) -> bool:
    """Whether this backend refuses the call at once. Of calls on the CPU alone."""
    op = OF_METHOD[method]
    strict, right = (
        STRICT.get(backend),
        (_RIGHT_OF_SEVERAL if op.coalesced else _RIGHT).get(op.form),
    )
    if strict is None or right is None:
        return False
    try:
        if not all(tensor.is_cpu for tensor in tensors_in(args[:2])):
            return False
        return not right(Call(_as_lists(op, args), size, rank, strict))
    except (TypeError, ValueError, AttributeError, IndexError):
        return False  # a form of the call that is not known here


def _as_lists(op: Op, args: Arguments) -> Arguments:
    """With the overloads that take one tensor for a list of one."""
    if op.form[1] and not op.coalesced:
        return args
    first, *rest = args
    return ([first] if isinstance(first, Tensor) else first, *rest)
