"""Reads the values in the brackets of a fault: one value of each kind, checked and in JSON's
types."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..record.signature import DTYPES, REDUCE_OPS
from .actions import Argument, Kind, exception_of
from .cursor import Cursor, Written
from .quantities import rate_of, seconds_of
from .tokens import Shape, Token, nearest

_REDUCE_OPS = tuple(name for name in REDUCE_OPS if name != "premul_sum")
"""A PREMUL_SUM has a factor, which a plan does not give."""
LARGEST = 1 << 31
MOST_DIMENSIONS = 64
MOST_IN_A_RANGE = 1 << 16


def rank_of(cursor: Cursor, token: Token, world_size: int | None, what: str = "a rank") -> int:
    """A global rank. Raises SpecError, also for one that the world has not."""
    if token.shape is not Shape.NUMBER or not token.text.isascii() or not token.text.isdigit():
        raise cursor.error(f"{what} is a whole number from 0 on", token)
    if world_size is not None and (len(token.text) > 12 or int(token.text) >= world_size):
        ranks = "rank 0 alone" if world_size == 1 else f"ranks 0 to {world_size - 1}"
        raise cursor.error(f"there is no rank {token.text}: this run has {ranks}", token)
    return _whole(cursor, token, what, 0, LARGEST)


def ranks_of(cursor: Cursor, value: Written, world_size: int | None) -> tuple[int, ...]:
    """`1`, `[1,3]`, `{1,3}`, `1..3` or `all`: global ranks in rising order. Raises SpecError."""
    if value.form == "range":
        first, last = (rank_of(cursor, token, world_size) for token in value.parts)
        if last < first or last - first >= MOST_IN_A_RANGE:
            raise cursor.error(f"from {first} to {last} there are no ranks", value)
        return tuple(range(first, last + 1))
    if value.form == "list":
        found = [rank_of(cursor, token, world_size) for token in value.parts]
        if not found:
            raise cursor.error("no rank is in the list", value)
        return tuple(sorted(set(found)))
    token = value.one
    if token is None:
        raise cursor.error("a rank is a whole number from 0 on", value)
    if token.shape is Shape.WORD and token.text == "all":
        if world_size is None:
            why = "rank=all needs the number of ranks, which is not known before the command runs"
            raise cursor.error(f"{why}; name them, such as rank=[0,1]", token)
        return tuple(range(world_size))
    return (rank_of(cursor, token, world_size),)


def value_of(cursor: Cursor, argument: Argument, value: Written) -> Any:
    """The value of an argument that is not Kind.VALUE, for `Fault.arguments`. Raises SpecError."""
    token = value.one
    if token is None:
        raise cursor.error(f"{argument.name} is one value", value)
    match argument.kind:
        case Kind.CHOICE:
            return _choice(cursor, token, argument.name, argument.choices)
        case Kind.SIGNAL:
            name = token.text.upper().removeprefix("SIG")
            if name in argument.choices:
                return name
            return _choice(cursor, token, argument.name, argument.choices)
        case Kind.INT:
            return _whole(cursor, token, argument.name, argument.low, argument.high)
        case Kind.SECONDS:
            return seconds_of(cursor, token, argument.name)
        case Kind.RATE:
            return rate_of(cursor, token, argument.name)
        case Kind.ERROR:
            return _error(cursor, token)
        case _:
            return _text(cursor, token, argument.name)


def changed_to(
    cursor: Cursor, what: str, value: Written, world_size: int | None
) -> int | str | list[int]:
    """Returns what `change` makes of it. Raises SpecError."""
    if what in ("shape", "split"):
        if value.form == "range":
            raise cursor.error(f"a {what} is a list, such as to=[2,3]", value)
        if len(value.parts) > MOST_DIMENSIONS and what == "shape":
            raise cursor.error(f"a shape has at most {MOST_DIMENSIONS} dimensions", value)
        return [_whole(cursor, token, f"a size in a {what}", 0, LARGEST) for token in value.parts]
    token = value.one
    if token is None:
        raise cursor.error(f"a {what} is one value", value)
    if what in ("root", "peer"):
        return rank_of(cursor, token, world_size, f"a {what}")
    if what == "tag":
        return _whole(cursor, token, "a tag", 0, LARGEST)
    if what == "dtype":
        bare = replace(token, text=token.text.removeprefix("torch."))
        return _choice(cursor, bare, "a dtype", tuple(DTYPES))
    if what == "reduce_op":
        bare = replace(token, text=token.text.removeprefix("ReduceOp.").lower())
        return _choice(cursor, bare, "a reduce op", _REDUCE_OPS)
    return _text(cursor, token, "a group")


def _whole(cursor: Cursor, token: Token, what: str, low: int, high: int) -> int:
    text = token.text.removeprefix("-")
    digits = token.shape is Shape.NUMBER and text.isascii() and text.isdigit()
    if digits and len(text) <= 12 and low <= int(token.text) <= high:
        return int(token.text)
    raise cursor.error(f"{what} is a whole number from {low} to {high}", token)


def _choice(cursor: Cursor, token: Token, what: str, choices: Sequence[str]) -> str:
    if token.text not in choices:
        raise cursor.error(
            f"{what} cannot be {token.text!r}{nearest(token.text, choices)}",
            token,
            [f"{what}: {', '.join(choices)}"],
        )
    return token.text


def _text(cursor: Cursor, token: Token, what: str) -> str:
    if not token.text:
        raise cursor.error(f"{what} is empty", token)
    return token.text


def _error(cursor: Cursor, token: Token) -> str:
    name, message = exception_of(token.text)
    kind = getattr(builtins, name, None)
    possible = [one for one in vars(builtins) if _can_raise(getattr(builtins, one))]
    if kind is None or not _can_raise(kind):
        raise cursor.error(
            f"Python has no exception {name!r} of its own that takes a message alone"
            f"{nearest(name, possible)}",
            token,
            ['write raise(rank=1, "ValueError: bad sample")'],
        )
    return f"{name}: {message}" if message else name


def _can_raise(kind: Any) -> bool:
    """Whether it is an exception that a message is enough for."""
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return False
    if issubclass(kind, Warning):
        return False
    try:
        kind("")
    except TypeError:
        return False
    return True
