"""Whether a call is like the newest one of its line: then it need not be described again.

What most lines call they call again with tensors of the same dtypes and shapes. One question to
torch's own guard costs half of what it takes to read them, which a key needs (see `describe`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import describe
from .describe import (
    METHODS,
    Arguments,
    Facts,
    look_again,
    number_of,
    reduce_op_of,
    reduce_op_of_scatter,
    root_of_broadcast,
)

if TYPE_CHECKING:
    from .recorder import Known

Guard = Callable[..., bool]


class Same:
    """The newest call of a line, and what says of tensors whether they are like its own."""

    __slots__ = ("guard", "known")

    def __init__(self, guard: Guard, known: Known) -> None:
        self.guard = guard
        self.known = known


@dataclass(frozen=True, slots=True)
class Form:
    """The usual form of a method's arguments: which tensors determine the call, and whether such
    arguments are like those of the call with this key, by the guard of its tensors. Both raise, or
    say no, where the arguments have another form."""

    tensors: Callable[[Arguments], Sequence[Any]]
    is_like: Callable[[Guard, Facts, Arguments], bool]

    def same(
        self,
        known: Known,
        args: Arguments,
        guard_of: Callable[[Sequence[Any]], Guard | None],
    ) -> Same | None:
        """For the calls that come after this one with these arguments; None where they must be
        described each time. `guard_of`: see `torch_private.tensor_guard`."""
        try:
            guard = guard_of(self.tensors(args))
        except Exception as error:
            look_again(error)
            return None
        if guard is None or not self.is_like(guard, known.key, args):
            return None
        return Same(guard, known)


# What says no by an error: an argument too many or too few, options of another class.


def _all_reduce(guard: Guard, key: Facts, args: Arguments) -> bool:
    try:
        tensors, options = args
        if tensors.__class__ is list:
            [tensor] = tensors
            return guard(tensor) and number_of(reduce_op_of(options)) == key[3]
    except Exception as error:
        look_again(error)
    return False


def _broadcast(guard: Guard, key: Facts, args: Arguments) -> bool:
    try:
        tensors, options = args
        if tensors.__class__ is list:
            [tensor] = tensors
            return guard(tensor) and root_of_broadcast(options) == key[3]
    except Exception as error:
        look_again(error)
    return False


def _gather(guard: Guard, _key: Facts, args: Arguments) -> bool:
    try:
        [outputs], [given] = args[0], args[1]
        return outputs.__class__ is list and guard(given, *outputs)
    except Exception as error:
        look_again(error)
    return False


def _gather_into_one(guard: Guard, _key: Facts, args: Arguments) -> bool:
    try:
        return guard(args[1], args[0])
    except Exception as error:
        look_again(error)
    return False


def _scatter_from_one(guard: Guard, key: Facts, args: Arguments) -> bool:
    try:
        output, given, options = args
        return guard(given, output) and number_of(reduce_op_of_scatter(options)) == key[5]
    except Exception as error:
        look_again(error)
    return False


def _message(guard: Guard, key: Facts, args: Arguments) -> bool:
    try:
        tensors, peer, tag = args
        if tensors.__class__ is list:
            [tensor] = tensors
            return guard(tensor) and peer == key[3] and tag == key[4]
    except Exception as error:
        look_again(error)
    return False


def never(_guard: Guard, _key: Facts, _args: Arguments) -> bool:
    """For a method whose calls are described each time."""
    return False


def _only(args: Arguments) -> Sequence[Any]:
    return args[0]  # type: ignore[no-any-return]


def _one_and_list(args: Arguments) -> Sequence[Any]:
    [outputs], [given] = args[0], args[1]
    return (given, *outputs)


def _two(args: Arguments) -> Sequence[Any]:
    return (args[1], args[0])


_OF_KEYS: dict[describe.Take, Form] = {
    describe.all_reduce_key: Form(_only, _all_reduce),
    describe.broadcast_key: Form(_only, _broadcast),
    describe.gather_key: Form(_one_and_list, _gather),
    describe.gather_into_one_key: Form(_two, _gather_into_one),
    describe.scatter_from_one_key: Form(_two, _scatter_from_one),
    describe.message_key: Form(_only, _message),
}
FORMS: dict[str, Form] = {
    name: _OF_KEYS[method.short] for name, method in METHODS.items() if method.short is not None
}
"""By method. The calls of others are described each time."""
