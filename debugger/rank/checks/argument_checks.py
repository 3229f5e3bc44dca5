"""Arguments that torch and its backends take unseen, and die of.

gloo asks neither `send` nor `recv` whether their peer is in the group: the process ends by SIGSEGV,
or waits for ever. Nor does it ask whether a split is negative, and sends what lies beside the
tensor. All else that is wrong by itself (roots, tags, lengths of lists, dtypes and sizes
of outputs) torch or the backend refuses at once, in words that programs know; so it stays.

Asked once for each distinct call, before it is on record: what is refused is never made.

What a backend refuses at once goes to it at once, whose error the program gets from the call, as
without this layer; the other ranks never meet it, and need not agree on it. What gloo refuses was
found by trial (torch 2.13); what is wrong but is taken (by gloo, the splits of an all-to-all) is no
matter of this file. Where a backend takes after all what is expected to be refused, the ranks agree
on it a moment later: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ...record.ops import OF_METHOD, POINT_TO_POINT, Op, Operand, Pattern
from ...record.signature import ANY_SOURCE
from ...record.wording import ranks_text
from ..record.describe import tensors_in
from ..record.recorder import Facts


class InvalidArgumentError(ValueError):
    """A call that is wrong by itself."""


def check(op: str, facts: Facts, ranks: Sequence[int]) -> None:
    """Raises InvalidArgumentError for a message to or from a rank that is not in the group, and for
    a negative split."""
    if op == "all_to_all_single":
        _check_splits("input_split_sizes", facts[4][0])
        _check_splits("output_split_sizes", facts[4][1])
    if op not in POINT_TO_POINT:
        return
    peer = facts[4]
    if 0 <= peer < len(ranks) or (op == "recv" and peer == ANY_SOURCE):
        return
    role, other = ("destination", "dst") if op == "send" else ("source", "src")
    raise InvalidArgumentError(
        f"{op}({other}={peer}): there is no such {role} in the group, which has {len(ranks)} "
        f"ranks ({ranks_text(ranks)})"
    )


def _check_splits(name: str, splits: Sequence[int]) -> None:
    if splits and min(splits) < 0:
        raise InvalidArgumentError(
            f"all_to_all_single({name}={list(splits)}): a split cannot have {min(splits)} rows"
        )


InvalidArgumentError.__module__ = "distdebug"


Arguments = tuple[Any, ...]

STRICT = {"gloo": True, "tcp": False, "mpi": False}
"""By backend, whether it compares shapes. distcore's compare numbers of elements; those of a list
may differ where each rank has its own, and this rank's own must fit. Of all others nothing is
foretold."""


@dataclass
class CallArguments:
    """The arguments of a call, in a group of `size` ranks of which this is the one with number
    `rank`. Overloads that take one tensor for a list of one have the list here."""

    op: Op
    args: Arguments
    size: int
    rank: int
    strict: bool

    def __post_init__(self) -> None:
        first, *rest = self.args
        if isinstance(first, Tensor) and (self.op.coalesced or not self.op.form[1]):
            self.args = ([first], *rest)

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


def _all_reduce(call: CallArguments) -> bool:
    tensors, *options = call.args
    if call.op.coalesced:
        dtypes = {tensor.dtype for tensor in tensors}
        return len(dtypes) == 1 or (len(dtypes) > 1 and not call.strict)
    if any(tensor.is_sparse for tensor in tensors) and options:
        op = getattr(options[0], "reduceOp", options[0])
        if op != dist.ReduceOp.SUM:
            return False
    return _alike(call)


def _alike(call: CallArguments) -> bool:
    tensors = call.args[0]
    return bool(tensors) and call.alike(tensors, tensors[0])


def _broadcast(call: CallArguments) -> bool:
    if call.is_root(1) is None or not _alike(call):
        return False
    return 0 <= call.root_tensor() < len(call.args[0])


def _reduce(call: CallArguments) -> bool:
    return call.is_root(1) is not None and len(call.args[0]) == 1 and call.root_tensor() == 0


def _all_gather(call: CallArguments) -> bool:
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


def _rooted(call: CallArguments, many: Any, one: Any) -> bool:
    """A gather or a scatter: the root alone has `many`, for each rank like its only `one`."""
    is_root = call.is_root(2)
    if is_root is None or len(one) != 1:
        return False
    if not is_root:
        return len(many) == 0
    if len(many) != 1 or len(many[0]) != call.size:
        return False
    return call.alike(many[0], one[0]) and _as_many(many[0], one[0])


def _reduce_scatter(call: CallArguments) -> bool:
    outputs, given = call.args[:2]
    return bool(outputs) and len(outputs) == len(given) and all(
        len(row) == call.size and call.alike(row, output) and call.own_fits(row, output)
        for row, output in zip(given, outputs, strict=True)
    )  # fmt: skip


def _in_one(call: CallArguments) -> bool:
    """Returns whether each whole has a part for each rank, one for each of the other side."""
    wholes, parts = call.args[:2]
    if call.op.inputs is Operand.WHOLE:
        wholes, parts = parts, wholes
    if not call.op.coalesced:
        return call.whole_of(wholes, parts)
    return len(wholes) == len(parts) and all(map(call.whole_of, wholes, parts))


def _all_to_all_single(call: CallArguments) -> bool:
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


_RIGHT: dict[tuple[Pattern, bool], Callable[[CallArguments], bool]] = {
    (Pattern.ALL_REDUCE, False): _all_reduce,
    (Pattern.BROADCAST, False): _broadcast,
    (Pattern.REDUCE, False): _reduce,
    (Pattern.ALL_GATHER, False): _all_gather,
    (Pattern.ALL_GATHER, True): _in_one,
    (Pattern.GATHER, False): lambda call: _rooted(call, call.args[0], call.args[1]),
    (Pattern.SCATTER, False): lambda call: _rooted(call, call.args[1], call.args[0]),
    (Pattern.REDUCE_SCATTER, False): _reduce_scatter,
    (Pattern.REDUCE_SCATTER, True): _in_one,
    (Pattern.ALL_TO_ALL, False): lambda call: len(call.args[0]) == len(call.args[1]) == call.size,
    (Pattern.ALL_TO_ALL, True): _all_to_all_single,
}
"""By `Op.form`, whether the arguments are right for a backend; any other counts as right."""


def expected(backend: str, method: str, args: Arguments, size: int, rank: int) -> bool:
    """Whether this backend refuses the call at once. Of calls on the CPU alone."""
    op = OF_METHOD[method]
    strict, right = STRICT.get(backend), _RIGHT.get(op.form)
    if strict is None or right is None or (op.coalesced and op.has_list):
        return False
    try:
        if not all(tensor.is_cpu for tensor in tensors_in(args[:2])):
            return False
        return not right(CallArguments(op, args, size, rank, strict))
    except (TypeError, ValueError, AttributeError, IndexError):
        return False  # a form of the call that is not known here
