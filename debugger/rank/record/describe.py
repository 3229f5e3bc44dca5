"""From the arguments of a process-group method to facts, and from facts to a signature.

*Facts* are a cheap hashable tuple that determines the signature; they are the key of the
recorder's cache, so that the full description is made once per distinct call, not once per call.
Reduce ops are compared by kind: a PREMUL_SUM factor is not part of the signature.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from distcore.base.call_text import REDUCE_OPS

from ...record.ops import OPS, POINT_TO_POINT, Op, Operand, Pattern, op_of
from ...record.signature import ANY_SOURCE, Signature, Tensor
from ..log.rank_log import is_interruption
from .recorder import Facts

Arguments = tuple[Any, ...]
Take = Callable[[Arguments], Facts]

_AllreduceOptions: Any = dist.AllreduceOptions
_BroadcastOptions: Any = dist.BroadcastOptions
_ReduceScatterOptions: Any = dist.ReduceScatterOptions
_SUM: Any = dist.ReduceOp.SUM
_found: Any = torch.accelerator.current_accelerator()
UNKNOWN_SIZE = -1
_ACCELERATOR = "cuda" if _found is None else str(_found.type)


def look_again(error: Exception) -> None:
    """The arguments are of another form than was expected, unless the handler of a signal has
    raised this, which may run anywhere."""
    if is_interruption(error):
        raise error


def _one(tensor: Any) -> tuple[Any, ...]:
    dtype = f"sparse {_name(tensor.dtype)}" if tensor.is_sparse else tensor.dtype
    return (dtype, tensor.shape, tensor.is_cpu)


def _list(tensors: Any) -> tuple[Any, ...]:
    if isinstance(tensors, torch.Tensor):
        return (_one(tensors),)
    return tuple(_one(tensor) for tensor in tensors)


def _flat(lists: Any) -> tuple[Any, ...]:
    if isinstance(lists, torch.Tensor):
        return (_one(lists),)
    return tuple([(one.dtype, one.shape, one.is_cpu) for row in lists for one in _row(row)])


def _other_side(lists: Any) -> tuple[Any, ...]:
    """Without the device: a call's is that of its principal tensors."""
    rows = (lists,) if isinstance(lists, torch.Tensor) else lists
    return tuple([(one.dtype, one.shape, None) for row in rows for one in _row(row)])


def _row(given: Any) -> Any:
    return (given,) if isinstance(given, torch.Tensor) else given


def _root(args: Arguments, position: int) -> int:
    """From an options object or, in the overloads without one, the argument itself."""
    if len(args) <= position:
        return 0
    options: Any = args[position]
    try:
        return int(options.rootRank)
    except AttributeError as error:
        look_again(error)
        return int(options)


def _reduce_op(args: Arguments, position: int = 1) -> int:
    """The number of the reduce op, which is also the hash of torch's own object; the shortest way
    to it, for every attribute of that object costs 0.2 µs."""
    try:
        return hash(args[position].reduceOp)
    except (IndexError, AttributeError) as error:  # an overload without an options object
        look_again(error)
        given: Any = args[position] if len(args) > position else _SUM
        kind: Any = getattr(given, "op", given)
        return int(kind)


# Facts are (principal tensors, tensors of the other side, reduce op, root, further). ------------


def _in_place_reducing(args: Arguments) -> Facts:
    return (_list(args[0]), (), _reduce_op(args), None)


def _reduce(args: Arguments) -> Facts:
    options: Any = args[1] if len(args) > 1 else 0
    if hasattr(options, "rootRank"):
        return (_list(args[0]), (), _reduce_op(args), options.rootRank)
    return (_list(args[0]), (), _reduce_op(args, 2), int(options))


def _broadcast(args: Arguments) -> Facts:
    return (_list(args[0]), (), None, _root(args, 1))


def _gathering(args: Arguments) -> Facts:
    return (_list(args[1]), _other_side(args[0]), None, None)


def _gather(args: Arguments) -> Facts:
    return (_list(args[1]), _other_side(args[0]), None, _root(args, 2))


def _scatter(args: Arguments) -> Facts:
    return (_list(args[0]), _other_side(args[1]), None, _root(args, 2))


def _reduce_scattering(args: Arguments) -> Facts:
    return (_flat(args[1]), _other_side(args[0]), _reduce_op(args, 2), None)


def _all_to_all(args: Arguments) -> Facts:
    return (_list(args[1]), _other_side(args[0]), None, None, "lists")


def _all_to_all_single(args: Arguments) -> Facts:
    receives = tuple(map(int, args[2])) if len(args) > 2 else ()  # they may come as a tensor
    sends = tuple(map(int, args[3])) if len(args) > 3 else ()
    return (_list(args[1]), _other_side(args[0]), None, None, (sends, receives))


def _nothing(_args: Arguments) -> Facts:
    return ((), (), None, None)


def _send_or_recv(args: Arguments) -> Facts:
    return (_list(args[0]), (), None, None, int(args[1]), int(args[2]))


def _recv_any(args: Arguments) -> Facts:
    return (_list(args[0]), (), None, None, ANY_SOURCE, int(args[1]))


# Keys of the usual forms of the usual calls: what determines their facts, with no more than one
# look at each attribute (0.05 to 0.3 µs each). Any other form has its facts as its key, which no
# key of these equals: facts begin with a tuple, these with a dtype. An attribute of torch's options
# is read by its getter, which refuses objects of another class, and costs half as much that way.


def getter(options: Any, name: str) -> Callable[[Any], Any]:
    """The attribute of objects of the class `options`, as a function of the object."""
    found = getattr(getattr(options, name, None), "fget", None)
    return getattr(found, "__func__", found) or operator.attrgetter(name)


reduce_op_of = getter(_AllreduceOptions, "reduceOp")
reduce_op_of_scatter = getter(_ReduceScatterOptions, "reduceOp")
root_of_broadcast = getter(_BroadcastOptions, "rootRank")
number_of: Callable[[Any], int] = getattr(dist.ReduceOp.__hash__, "__func__", hash)
_form_of = operator.attrgetter("dtype", "shape")
_OTHER_FORM = (TypeError, ValueError, AttributeError, IndexError)


def all_reduce_key(args: Arguments) -> Facts:
    try:
        tensors, options = args
        if tensors.__class__ is list:
            [tensor] = tensors
            number = number_of(reduce_op_of(options))
            # The one call that takes sparse tensors, which do not meet others.
            return (tensor.dtype, tensor.shape, tensor.is_cpu, number, tensor.layout)
    except _OTHER_FORM as error:
        look_again(error)
    return _in_place_reducing(args)


def broadcast_key(args: Arguments) -> Facts:
    try:
        tensors, options = args
        if tensors.__class__ is list:
            [tensor] = tensors
            return (tensor.dtype, tensor.shape, tensor.is_cpu, root_of_broadcast(options))
    except _OTHER_FORM as error:
        look_again(error)
    return _broadcast(args)


def gather_key(args: Arguments) -> Facts:
    try:
        [outputs], [given] = args[0], args[1]
        if outputs.__class__ is list:
            return (given.dtype, given.shape, given.is_cpu, *map(_form_of, outputs))
    except _OTHER_FORM as error:
        look_again(error)
    return _gathering(args)


def gather_into_one_key(args: Arguments) -> Facts:
    try:
        output, given = args[0], args[1]
        return (given.dtype, given.shape, given.is_cpu, output.dtype, output.shape)
    except _OTHER_FORM as error:
        look_again(error)
        return _gathering(args)


def scatter_from_one_key(args: Arguments) -> Facts:
    try:
        output, given, options = args
        number = number_of(reduce_op_of_scatter(options))
        return (given.dtype, given.shape, given.is_cpu, output.dtype, output.shape, number)
    except _OTHER_FORM as error:
        look_again(error)
        return _reduce_scattering(args)


def message_key(args: Arguments) -> Facts:
    if args[0].__class__ is list:
        try:
            tensors, peer, tag = args
            [tensor] = tensors
            if peer.__class__ is not int or tag.__class__ is not int:
                peer, tag = int(peer), int(tag)
            return (tensor.dtype, tensor.shape, tensor.is_cpu, peer, tag)
        except _OTHER_FORM as error:
            look_again(error)
    return _send_or_recv(args)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of torch's ProcessGroup: its op, how to take the facts from its arguments, where its
    options object stands (None: it has none), and where the tensors that the rank contributes
    (None: none). Where those come second, the first are the output. `short`: a cheaper way to a key
    that determines the facts. `agrees`: whether its ranks may be asked to agree on the call before
    it is made."""

    op: str
    facts: Take
    options_at: int | None
    gives_at: int | None
    short: Take | None = None
    agrees: bool = True

    @property
    def key(self) -> Take:
        """Returns the function that takes from the arguments what tells this call from others of
        the op."""
        return self.short or self.facts

    def given(self, args: Arguments) -> Any:
        """The argument with what the rank contributes; None without one."""
        if self.gives_at is None or not args:
            return None
        return args[min(self.gives_at, len(args) - 1)]


_ARGUMENTS: dict[tuple[Pattern, bool], tuple[Take, int | None, int | None, Take | None]] = {
    (Pattern.ALL_REDUCE, False): (_in_place_reducing, 1, 0, all_reduce_key),
    (Pattern.BROADCAST, False): (_broadcast, 1, 0, broadcast_key),
    (Pattern.REDUCE, False): (_reduce, 1, 0, None),
    (Pattern.ALL_GATHER, False): (_gathering, 2, 1, gather_key),
    (Pattern.ALL_GATHER, True): (_gathering, 2, 1, gather_into_one_key),
    (Pattern.GATHER, False): (_gather, 2, 1, None),
    (Pattern.GATHER, True): (_gather, 2, 1, None),
    (Pattern.SCATTER, False): (_scatter, 2, 1, None),
    (Pattern.REDUCE_SCATTER, False): (_reduce_scattering, 2, 1, None),
    (Pattern.REDUCE_SCATTER, True): (_reduce_scattering, 2, 1, scatter_from_one_key),
    (Pattern.ALL_TO_ALL, False): (_all_to_all, 2, 1, None),
    (Pattern.ALL_TO_ALL, True): (_all_to_all_single, 4, 1, None),
    (Pattern.BARRIER, False): (_nothing, 0, None, None),
    (Pattern.MONITORED_BARRIER, False): (_nothing, None, None, None),
    (Pattern.MESSAGE, False): (_send_or_recv, None, 0, message_key),
}
"""By `Op.form`: `facts`, `options_at`, `gives_at` and `short` of its methods."""
_USUAL = (_gathering, 2, 1, None)
"""Of an op of any other form: output, input, options, as most of torch's methods have them."""


def _method(name: str, op: str, row: Op) -> Method:
    facts, options_at, gives_at, short = _ARGUMENTS.get(row.form, _USUAL)
    if name == "recv_anysource":
        facts, short = _recv_any, None
    return Method(
        op,
        facts,
        options_at,
        gives_at if row.inputs is not Operand.NONE else None,
        None if row.coalesced else short,
        # For ranks that do not come: to wait for these first would be wrong.
        agrees=row.pattern is not Pattern.MONITORED_BARRIER,
    )


METHODS: dict[str, Method] = {
    name: _method(name, op, row) for op, row in OPS.items() for name in row.methods
}


def tensors_in(argument: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments of a method: one, a list, or lists of lists."""
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, list | tuple):
        for one in argument:
            yield from tensors_in(one)


def first_wrong(tensor: torch.Tensor, inf_too: bool) -> int | None:
    """Returns the first element that is NaN (or infinite); None where none is, or can be read."""
    if tensor.layout is not torch.strided:
        return None
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    with torch.no_grad():
        if tensor.element_size() == 1:
            tensor = tensor.to(torch.float16)  # torch cannot ask eight bits
        wrong = tensor.isfinite().logical_not() if inf_too else tensor.isnan()
        return int(wrong.flatten().nonzero()[0]) if wrong.any() else None


def on_cpu(facts: Facts) -> bool | None:
    """Whether the call's tensors are on the CPU; None when it has no tensors."""
    return facts[0][0][2] if facts[0] else None


def signature(op: str, facts: Facts, ranks: Sequence[int], by_device: bool = False) -> Signature:
    """The signature for facts; `ranks` maps group ranks to global ranks. `by_device`: the group has
    different backends for different devices, which do not meet."""
    tensors, others, reduce_op, root = facts[:4]
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    splits, in_one = op_of(op).splits, op_of(op).inputs is Operand.WHOLE
    if splits and not in_one:
        sends, receives = _counts(tensors), _counts(others)
    elif splits:
        sends = _split(tensors[0][1], facts[4][0], len(ranks))
        receives = _split(others[0][1], facts[4][1], len(ranks))
    peer, tag = (facts[4], facts[5]) if op in POINT_TO_POINT else (None, 0)
    cpu = on_cpu(facts)
    return Signature(
        op=op,
        tensors=_tensors(tensors),
        others=_tensors(others),
        reduce_op="" if reduce_op is None else REDUCE_OPS.get(reduce_op, str(reduce_op)),
        root=None if root is None else _global(int(root), ranks),
        sends=sends,
        receives=receives,
        peer=None if peer is None else _global(peer, ranks),
        tag=tag,
        device="" if cpu is None or not by_device else "cpu" if cpu else _ACCELERATOR,
    )


def _global(rank: int, ranks: Sequence[int]) -> int:
    """The global rank; one outside the group stays as it was given, for the error to name."""
    return ranks[rank] if 0 <= rank < len(ranks) else rank


def _tensors(facts: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return tuple((_name(dtype), _sizes(shape)) for dtype, shape, _ in facts)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _counts(facts: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(prod(_sizes(shape)) for _, shape, _ in facts)


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    """A size may be no number: of the rows of a nested tensor, or while a program is traced."""
    return tuple(size if isinstance(size, int) else UNKNOWN_SIZE for size in shape)


def _split(shape: Sequence[int], splits: Sequence[int], group_size: int) -> tuple[int, ...]:
    """Elements per peer: as given along the first dimension, or in even parts."""
    sizes = _sizes(shape)
    row = prod(sizes[1:])
    if splits:
        return tuple(part * row for part in splits)
    return (prod(sizes) // group_size,) * group_size
