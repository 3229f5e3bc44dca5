"""The arguments of a call: torch's options objects, and the checks made before anything is sent.

Every method of ProcessGroup takes an options object; most also take its fields instead, as
`allreduce(tensor, op, timeout)`. The message of a check names the call, the argument, this rank,
what was expected and what was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor

from .. import torch_private
from ..base.call_text import dtype_name
from ..engine.staging import MAIN_MEMORY, DeviceReach
from ..torch_private import c10d


class InvalidArgument(ValueError, RuntimeError):
    """An invalid argument. torch's own backends raise a RuntimeError for it."""


class InvalidType(TypeError, RuntimeError):
    """An argument of the wrong type."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, for messages: `ranks` are the group's global ranks, `rank` this one's place in
    them, `reach` the devices that its backend takes tensors of."""

    call: str
    ranks: tuple[int, ...]
    rank: int
    reach: DeviceReach = MAIN_MEMORY

    def wrong(self, argument: str, expected: object, given: object, words: str = "") -> NoReturn:
        """InvalidArgument; `words` are torch's own for it, which programs look for."""
        raise InvalidArgument(self._sentence(argument, expected, given, words))

    def wrong_type(self, argument: str, expected: object, given: object) -> NoReturn:
        """Raises InvalidType."""
        raise InvalidType(self._sentence(argument, expected, given))

    def _sentence(self, argument: str, expected: object, given: object, words: str = "") -> str:
        return (
            f"{self.call} on rank {self.ranks[self.rank]}: {argument}: "
            f"expected {expected}, given {given}{f' ({words})' if words else ''}"
        )


def shown(tensor: Tensor) -> str:
    """`float32[3, 4]`"""
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def tensor(caller: Caller, argument: str, given: Any, *, written: bool = False) -> Tensor:
    """A dense tensor of a device that the backend takes; if `written`, without elements that share
    memory."""
    if not isinstance(given, Tensor):
        caller.wrong_type(argument, "a tensor", type(given).__name__)
    if given.layout is not torch.strided:
        layout = str(given.layout).removeprefix("torch.")
        given_layout = f"one of layout {layout}: use to_dense()"
        caller.wrong(argument, "a dense tensor", given_layout, "unsupported layout")
    if given.device.type not in caller.reach:
        caller.wrong(argument, f"a tensor on {caller.reach.named}", f"one on {given.device}")
    if written and not given.is_contiguous() and torch_private.overlaps_itself(given):
        caller.wrong(
            argument,
            "a tensor whose elements each have their own memory",
            f"{shown(given)} with strides {given.stride()}: use clone()",
        )
    return given


def tensors(
    caller: Caller, argument: str, given: Any, length: int | None = None, *, written: bool = False
) -> list[Tensor]:
    """A list of tensors, of `length` where that is given, all of one dtype."""
    if not isinstance(given, list | tuple):
        caller.wrong_type(argument, "a list of tensors", type(given).__name__)
    if length is not None and len(given) != length:
        expected = f"{length} tensors, one for each rank"
        caller.wrong(
            argument, expected, len(given), _length_in_torchs_words(argument, given, length)
        )
    for index, one in enumerate(given):
        tensor(caller, f"{argument}[{index}]", one, written=written)
    if given:
        dtype = given[0].dtype
        for index, one in enumerate(given):
            if one.dtype is not dtype:
                caller.wrong(
                    f"{argument}[{index}]",
                    f"{dtype_name(dtype)}, as {argument}[0] is",
                    dtype_name(one.dtype),
                )
    return list(given)


def _length_in_torchs_words(argument: str, given: Sequence[Any], length: int) -> str:
    side = {"scatter_list": "input", "gather_list": "output"}.get(argument)
    if side is None:
        return f"invalid output tensor list at index 0 (expected length {length}, got {len(given)})"
    return (
        f"Incorrect {side} list size {len(given)}. {side.capitalize()} list size should be "
        f"{length}, same as size of the process group."
    )


def only_one(caller: Caller, argument: str, given: Sequence[Any], words: str = "") -> Any:
    """The element of a list that torch's interface allows to be longer."""
    if len(given) != 1:
        caller.wrong(argument, "a list of one element", len(given), words)
    return given[0]


def same_dtype(caller: Caller, argument: str, given: Tensor, name: str, like: Tensor) -> None:
    if given.dtype is not like.dtype:
        expected = f"{dtype_name(like.dtype)}, as {name} is"
        caller.wrong(argument, expected, dtype_name(given.dtype), "invalid tensor type")


def count(caller: Caller, argument: str, given: Tensor, expected: int, why: str) -> None:
    """The number of elements."""
    if given.numel() != expected:
        wanted = f"{expected} elements ({why})"
        caller.wrong(argument, wanted, f"{given.numel()}, {shown(given)}", "invalid tensor size")


def pair(caller: Caller, written: str, output: Any, read: str, data: Any) -> None:
    """An output and an input, of one dtype."""
    tensor(caller, written, output, written=True)
    tensor(caller, read, data)
    same_dtype(caller, written, output, read, data)


def part(caller: Caller, name: str, one: Tensor, argument: str, whole: Tensor) -> None:
    """`whole` has as many elements as `one` for each rank."""
    size = len(caller.ranks)
    count(caller, argument, whole, one.numel() * size, f"{size} times the {one.numel()} of {name}")


def counts(caller: Caller, argument: str, given: Sequence[Tensor], name: str, like: Tensor) -> None:
    """The dtype and the number of elements of all must be those of `like`."""
    expected = like.numel()
    for index, one in enumerate(given):
        if one.numel() != expected or one.dtype is not like.dtype:
            what = "size" if one.dtype is like.dtype else "type"
            caller.wrong(
                f"{argument}[{index}]",
                f"{expected} elements of {dtype_name(like.dtype)}, as {name} has",
                shown(one),
                f"invalid tensor {what} at index {index}",
            )


def root_tensor(caller: Caller, given: int, tensors: Sequence[Any]) -> int:
    """Returns which of the root's tensors the call is about."""
    if not 0 <= given < len(tensors):
        expected = f"the index of one of {len(tensors)} tensors"
        caller.wrong("rootTensor", expected, given, f"invalid root tensor: {given}")
    return given


def group_rank(caller: Caller, argument: str, given: Any, words: str = "") -> int:
    """A rank of the group, in the group's own numbering. `words`: torch's own for one that is
    not."""
    if not isinstance(given, int):
        caller.wrong_type(argument, "a rank", type(given).__name__)
    if not 0 <= given < len(caller.ranks):
        caller.wrong(
            argument,
            f"a rank of this group of {len(caller.ranks)} (0 to {len(caller.ranks) - 1})",
            given,
            words and f"{words}: {given}",
        )
    return int(given)


def peer(caller: Caller, argument: str, given: Any) -> int:
    """Another rank of the group."""
    rank = group_rank(caller, argument, given)
    if rank == caller.rank:
        caller.wrong(argument, "another rank", f"{given}, this rank itself")
    return rank


def tag(caller: Caller, given: Any) -> int:
    if not isinstance(given, int):
        caller.wrong_type("tag", "an int", type(given).__name__)
    if not -(2**31) <= given < 2**31:
        caller.wrong("tag", "a number of 32 bits", given)
    if given < 0:
        caller.wrong("tag", "0 or more", given, "Tag must be nonnegative")
    return int(given)


def divides(caller: Caller, name: str, given: Tensor) -> None:
    """The first dimension can be split evenly among the ranks."""
    size = len(caller.ranks)
    if (given.shape[0] if given.dim() else 1) % size:
        caller.wrong(
            name, f"a first dimension that is a multiple of {size}, the ranks", shown(given)
        )


def splits(caller: Caller, argument: str, given: Sequence[int], of: Tensor, name: str) -> list[int]:
    """Elements for each rank. `given`: rows of the first dimension for each."""
    size = len(caller.ranks)
    rows = of.shape[0] if of.dim() else 1
    given = list(given)
    if len(given) != size:
        caller.wrong(argument, f"{size} numbers, one for each rank", f"{len(given)}: {given}")
    if min(given) < 0:
        caller.wrong(argument, "no negative number", given)
    if sum(given) != rows:
        caller.wrong(
            argument,
            f"numbers that add up to {rows}, the first dimension of {name}",
            f"{given}, which add up to {sum(given)}",
        )
    row = of.numel() // rows if rows else 0
    return [part * row for part in given]


# torch's stubs do not have the constructors.
AllReduce: Any = c10d.AllreduceOptions
AllReduceCoalesced: Any = c10d.AllreduceCoalescedOptions
AllGather: Any = c10d.AllgatherOptions
AllToAll: Any = c10d.AllToAllOptions
Barrier: Any = c10d.BarrierOptions
Broadcast: Any = c10d.BroadcastOptions
Gather: Any = c10d.GatherOptions
Reduce: Any = c10d.ReduceOptions
ReduceScatter: Any = c10d.ReduceScatterOptions
Scatter: Any = c10d.ScatterOptions

_NONE = timedelta(0)


def options(kind: Any, given: Any, timeout: timedelta | None = None, **fields: Any) -> Any:
    """`given` where it is an options object, else a new one with the fields that are not None;
    `given` then is the first of them."""
    if given is not None and given.__class__.__name__.endswith("Options"):
        return given
    made = kind()
    for position, (field, value) in enumerate(fields.items()):
        if value is None and position == 0:
            value = given
        if value is not None:
            setattr(made, field, value)
    if timeout is not None:
        made.timeout = timeout
    return made


def listed(tensors: Any, tensor: Any) -> Any:
    """A list of tensors, where the one form takes a list and the other a tensor."""
    given = tensor if tensors is None else tensors
    return [given] if isinstance(given, Tensor) else given


def time_limit(given: Any, default_s: float) -> float:
    """Seconds: those of the options object, or the group's."""
    timeout = given.timeout
    return default_s if timeout <= _NONE else float(timeout.total_seconds())
