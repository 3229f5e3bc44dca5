"""`change`: the same call with one argument other than the program gave it.

The program's own tensors keep their shapes: where the call needs others it gets new ones, and what
it receives goes nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from ...record.ops import OPS, POINT_TO_POINT, Operand
from ..record.describe import METHODS, tensors_in
from .call import CannotHappen, InjectedCall

Shape = tuple[int, ...]


def change(call: InjectedCall, what: str, to: Any) -> InjectedCall:
    """The call with another `what`: `to`, or where that is None one that differs in any case."""
    return _CHANGES[what](call, to)


# -- tensors ---------------------------------------------------------------------------------------


def _shape(call: InjectedCall, to: Sequence[int] | None) -> InjectedCall:
    _need_tensors(call)
    op = OPS[call.op]
    if op.splits and op.inputs is Operand.WHOLE:
        return _split_shape(call, to)
    size = call.group.size()
    first, *rest = call.given
    into, out_of = op.outputs is Operand.WHOLE, op.inputs is Operand.WHOLE
    two_sided = METHODS[call.name].gives_at == 1

    def small(tensor: torch.Tensor) -> torch.Tensor:
        return _resized(tensor, tuple(to) if to is not None else _other_shape(tensor.shape))

    def large(tensor: torch.Tensor) -> torch.Tensor:
        shape = tuple(tensor.shape)
        if to is not None:
            one: Shape = tuple(to)
        elif shape and shape[0] % size == 0:
            one = _other_shape((shape[0] // size, *shape[1:]))
        else:
            one = _other_shape((prod(shape) // size,))
        return _resized(tensor, (size * one[0], *one[1:]) if one else (size,))

    changed = [_mapped(first, large if into else small)]
    if two_sided and rest:
        changed.append(_mapped(rest.pop(0), large if out_of else small))
    return call.changed(*changed, *rest)


def _other_shape(shape: Sequence[int]) -> Shape:
    """Returns the shape with one row less, or one more where that would leave nothing."""
    if not shape or not prod(shape[1:]):
        return (prod(shape) + 1,)
    return (shape[0] - 1 if shape[0] > 1 else shape[0] + 1, *shape[1:])


def _resized(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A new tensor with as many of the elements as there is room for, and zeros behind them."""
    if tensor.layout is not torch.strided:
        raise CannotHappen(f"a {tensor.layout} tensor cannot get another shape", here=True)
    made = torch.zeros(tuple(shape), dtype=tensor.dtype, device=tensor.device)
    count = min(made.numel(), tensor.numel())
    made.view(-1)[:count] = tensor.detach().reshape(-1)[:count]
    return made


def _dtype(call: InjectedCall, to: str | None) -> InjectedCall:
    _need_tensors(call)
    first, *rest = call.given

    def converted(tensor: torch.Tensor) -> torch.Tensor:
        other = _other_dtype(tensor.dtype)
        if to is not None:
            named = getattr(torch, to.removeprefix("torch."), None)
            if not isinstance(named, torch.dtype):
                raise CannotHappen(f"{to} is no dtype of torch; name one, such as float64")
            other = named
        return tensor.detach().to(other, copy=True)

    changed = [_mapped(first, converted)]
    if METHODS[call.name].gives_at == 1 and rest:
        changed.append(_mapped(rest.pop(0), converted))
    return call.changed(*changed, *rest)


def _other_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns another dtype, of the same kind where there is one, that every backend knows."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.float64 if dtype is torch.float32 else torch.float32
    if dtype is torch.bool:
        return torch.uint8
    return torch.int64 if dtype is torch.int32 else torch.int32


def _need_tensors(call: InjectedCall) -> None:
    if next(tensors_in(call.given[:2]), None) is None:
        raise CannotHappen(f"{call.op} has no tensors", here=True)


def _mapped(argument: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The argument, a tensor or lists of them, with every tensor replaced."""
    if isinstance(argument, torch.Tensor):
        return make(argument)
    return [_mapped(one, make) for one in argument]


# -- options ---------------------------------------------------------------------------------------


def _reduce_op(call: InjectedCall, to: str | None) -> InjectedCall:
    if not OPS[call.op].reduces:
        raise CannotHappen(f"{call.op} has no reduce op", here=True)
    options = _copied_options(call)
    if to is None:
        maximum: Any = dist.ReduceOp.MAX
        found: Any = dist.ReduceOp.SUM if options.reduceOp == maximum else maximum
    else:
        found = getattr(dist.ReduceOp, to.upper(), None)
        if found is None or to.upper() == "PREMUL_SUM":
            raise CannotHappen(f"{to} is no reduce op; name one, such as max")
    options.reduceOp = found
    return _with_options(call, options)


def _root(call: InjectedCall, to: int | None) -> InjectedCall:
    if not OPS[call.op].root:
        raise CannotHappen(f"{call.op} has no root", here=True)
    group = call.group
    options = _copied_options(call)
    before = int(options.rootRank)
    root = _group_rank(group, to) if to is not None else (before + 1) % group.size()
    if root == before:
        raise CannotHappen(f"rank {group.ranks[root]} is the root already", here=True)
    options.rootRank = root
    changed = _with_options(call, options)
    op = OPS[call.op]
    if not op.has_list:
        return changed
    first, second, *rest = changed.args
    one = next(tensors_in(second if op.outputs is Operand.LIST else first))
    # The root alone has a list, with a tensor for each rank.
    every = [[torch.zeros_like(one) for _ in group.ranks]] if root == group.rank() else []
    if op.outputs is Operand.LIST:
        return changed.changed(every, second, *rest)
    return changed.changed(first, every, *rest)


def _copied_options(call: InjectedCall) -> Any:
    """Options of the call's own, which may be changed: another call may have the same object."""
    options = call.options
    if not hasattr(options, "timeout"):
        raise CannotHappen(f"this {call.op} was made without an options object", here=True)
    made = type(options)()
    for name in dir(options):
        if not name.startswith("_"):
            setattr(made, name, getattr(options, name))
    return made


def _with_options(call: InjectedCall, options: Any) -> InjectedCall:
    args = list(call.given)
    args[METHODS[call.name].options_at or 0] = options
    return call.changed(*args)


# -- messages and groups ---------------------------------------------------------------------------


def _tag(call: InjectedCall, to: int | None) -> InjectedCall:
    _need_message(call)
    *args, tag = call.given
    other = tag + 1 if to is None else to
    if other == tag:
        raise CannotHappen(f"{tag} is its tag already", here=True)
    return call.changed(*args, other)


def _peer(call: InjectedCall, to: int | None) -> InjectedCall:
    _need_message(call)
    if call.name == "recv_anysource":
        raise CannotHappen("a receive from any source has no peer", here=True)
    group = call.group
    tensors, peer, tag = call.given
    others = [rank for rank in range(group.size()) if rank not in (peer, group.rank())]
    if to is not None:
        others = [rank for rank in others if rank == _group_rank(group, to)]
    if not others:
        raise CannotHappen("the group has no other rank for the message", here=True)
    other = next((rank for rank in others if rank > peer), others[0])
    return call.changed(tensors, other, tag)


def _need_message(call: InjectedCall) -> None:
    if call.op not in POINT_TO_POINT:
        raise CannotHappen(f"{call.op} goes to no single peer: it is no send or recv", here=True)


def _group_rank(group: Any, rank: int) -> int:
    if rank not in group.ranks:
        raise CannotHappen(f"rank {rank} is not in the group of this call", here=True)
    return int(group.ranks.index(rank))


def _group(call: InjectedCall, to: str | None) -> InjectedCall:
    group = call.group
    others = [one for one in group.siblings() if to is None or to in one.names]
    # Where there is a part for each rank, the other group must be of the same size.
    op = OPS[call.op]
    exact = op.has_list or Operand.WHOLE in (op.inputs, op.outputs)
    indices = [int(call.given[1])] if call.op in POINT_TO_POINT else []
    indices += [int(getattr(call.options, "rootRank", 0))]
    for other in others:
        fits = other.size() == group.size() if exact else max(indices) < other.size()
        itself = call.op in POINT_TO_POINT and indices[0] == other.rank()
        if fits and not itself:
            return call.changed(*call.given, group=other)
    named = "other group" if to is None else f"group {to!r}"
    raise CannotHappen(f"this rank is in no {named} that could make this {call.op}", here=True)


# -- splits ----------------------------------------------------------------------------------------
#
# An all-to-all in which one rank sends other numbers of rows than its peers expect. What a rank
# sends to itself never leaves the process, so no backend compares it: it must agree, or memory
# would be overwritten.


def _split(call: InjectedCall, to: Sequence[int] | None) -> InjectedCall:
    """Move a row from what one peer gets to what another does; `to`: the rows of all peers."""
    if not OPS[call.op].splits:
        raise CannotHappen(f"{call.op} has no splits", here=True)
    if OPS[call.op].has_list:
        return _in_lists(call, to)
    output, given, out_splits, in_splits, *rest = _with_splits(call)
    sends = _chosen(call, in_splits, to)
    receives = list(out_splits)
    own = call.group.rank()
    receives[own] = sends[own]
    return call.changed(
        _rows(output, sum(receives)), _rows(given, sum(sends)), receives, sends, *rest
    )


def _split_shape(call: InjectedCall, to: Sequence[int] | None) -> InjectedCall:
    """An input with another number of rows, for an all-to-all of one tensor."""
    output, given, out_splits, in_splits, *rest = _with_splits(call)
    rows = int(to[0]) if to else sum(in_splits) + 1
    if to and tuple(to[1:]) != tuple(given.shape[1:]):
        raise CannotHappen(f"the rows of {call.op} keep their shape: only their number changes")
    peer = (call.group.rank() + 1) % call.group.size()
    sends = list(in_splits)
    sends[peer] += rows - sum(sends)
    if sends[peer] < 0 or peer == call.group.rank():
        raise CannotHappen(f"its other splits leave no room for {rows} rows", here=True)
    return call.changed(output, _rows(given, rows), list(out_splits), sends, *rest)


def _with_splits(call: InjectedCall) -> list[Any]:
    """The arguments, with splits where the program gave none."""
    output, given, out_splits, in_splits, *rest = call.given
    size = call.group.size()
    even_out = [output.shape[0] // size] * size
    even_in = [given.shape[0] // size] * size
    return [output, given, list(out_splits) or even_out, list(in_splits) or even_in, *rest]


def _in_lists(call: InjectedCall, to: Sequence[int] | None) -> InjectedCall:
    outputs, inputs, *rest = call.given
    if any(tensor.dim() == 0 for tensor in inputs):
        raise CannotHappen("tensors without dimensions have no rows to move", here=True)
    before = [tensor.shape[0] for tensor in inputs]
    own = call.group.rank()
    sends = _chosen(call, before, to)
    changed = [_rows(one, count) for one, count in zip(inputs, sends, strict=True)]
    received = list(outputs)
    received[own] = _rows(outputs[own], sends[own])
    return call.changed(received, changed, *rest)


def _chosen(call: InjectedCall, before: Sequence[int], to: Sequence[int] | None) -> list[int]:
    if to is not None:
        if len(to) != len(before) or list(to) == list(before):
            raise CannotHappen(
                f"this {call.op} has {len(before)} splits, {list(before)}: give as many, and others"
            )
        return list(to)
    own = call.group.rank()
    others = [rank for rank in range(len(before)) if rank != own]
    giver = max(others, key=lambda rank: before[rank], default=own)
    if giver == own or not before[giver]:
        raise CannotHappen(f"this {call.op} sends no row that could go to another rank", here=True)
    taker = next((rank for rank in others if rank != giver), own)
    sends = list(before)
    sends[giver] -= 1
    sends[taker] += 1
    return sends


def _rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A new tensor with so many rows, the first of them the tensor's."""
    return _resized(tensor, (rows, *tensor.shape[1:]))


_CHANGES: dict[str, Callable[[InjectedCall, Any], InjectedCall]] = {
    "shape": _shape,
    "dtype": _dtype,
    "reduce_op": _reduce_op,
    "root": _root,
    "split": _split,
    "tag": _tag,
    "peer": _peer,
    "group": _group,
}
