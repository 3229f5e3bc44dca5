"""Numbers out of tensors whose values a plan does not have: they add up, print, and tell when the
program decides something by them.

What is to be a float is one, for it is printed, kept and handed on everywhere. What is to be an
integer is none: Python and torch take an integer's value where they need an index or a size without
asking it, and a shape would be guessed silently.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from .decisions import Decisions

_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
)
_UNARY = ("neg", "pos", "abs")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_OF_BITS = ("and_", "or_", "xor", "lshift", "rshift")
_CONDITION = "a condition on a value that is not known"
_FLOAT_FUNCTIONS = (
    "sqrt",
    "exp",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "pow",
    "fabs",
    "tanh",
    "sin",
    "cos",
    "copysign",
    "fmod",
    "hypot",
    "fsum",
)
_DECIDING_FUNCTIONS = ("isnan", "isinf", "isfinite", "isclose")
_ROUNDING_FUNCTIONS = ("ceil", "floor", "trunc")


class Undecided:
    """A number that is not known. `decisions` is told what the program does with it."""

    decisions: Decisions
    __slots__ = ()


class UndecidedFloat(Undecided, float):
    """One that is a float to everybody."""

    decisions: Decisions

    def __new__(cls, value: float, decisions: Decisions) -> UndecidedFloat:
        made = float.__new__(cls, value)
        made.decisions = decisions
        return made

    def __bool__(self) -> bool:
        return self.decisions.condition(float.__ne__(self, 0.0), _CONDITION)

    def __int__(self) -> int:
        self.decisions.depends("an integer made of a value that is not known")
        return int(_plain(self))

    __trunc__ = __int__

    def __hash__(self) -> int:
        self.decisions.depends("the hash of a value that is not known")
        return hash(_plain(self))

    def __round__(self, digits: Any = None) -> Any:
        return known_as(round(_plain(self), digits), self.decisions)

    def __reduce__(self) -> Any:
        return (float, (_plain(self),))

    def __str__(self) -> str:
        return float.__repr__(_plain(self))

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(_plain(self), form)


class UndecidedInteger(Undecided):
    """One that is an integer only to who asks it."""

    __slots__ = ("decisions", "value")

    def __init__(self, value: int, decisions: Decisions) -> None:
        self.value = value
        self.decisions = decisions

    def __bool__(self) -> bool:
        return self.decisions.condition(bool(self.value), _CONDITION)

    def __index__(self) -> int:
        self.decisions.depends("an index or a size that is not known")
        return int(self.value)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.value)

    def __hash__(self) -> int:
        self.decisions.depends("the hash of a value that is not known")
        return hash(self.value)

    def __round__(self, digits: Any = None) -> Any:
        del digits
        return self

    def __reduce__(self) -> Any:
        return (int, (int(self.value),))

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self.value, form)


def _plain(value: Any) -> Any:
    """The number that stands in."""
    if isinstance(value, UndecidedFloat):
        return float.__add__(value, 0.0)
    return value.value if isinstance(value, UndecidedInteger) else value


def known_as(value: Any, decisions: Decisions) -> Any:
    """This number, or each of a list, as one that is not known."""
    if isinstance(value, list):
        return [known_as(one, decisions) for one in value]
    if isinstance(value, float):
        return UndecidedFloat(value, decisions)
    if isinstance(value, int):
        return UndecidedInteger(value, decisions)
    return value


def unknown_in(values: Any, depth: int = 3) -> Decisions | None:
    """Who is told about a number that is not known, among these or in lists of them."""
    if isinstance(values, Undecided):
        return values.decisions
    if depth and isinstance(values, list | tuple):
        return next(filter(None, (unknown_in(one, depth - 1) for one in values)), None)
    if depth and isinstance(values, dict):
        return unknown_in(list(values.values()), depth)
    return None


def _calculating(function: Callable[..., Any], swapped: bool) -> Callable[..., Any]:
    def calculate(self: Any, *others: Any) -> Any:
        if any(not isinstance(one, int | float | UndecidedInteger) for one in others):
            return NotImplemented
        numbers = [_plain(one) for one in (self, *others)]
        return known_as(function(*(reversed(numbers) if swapped else numbers)), self.decisions)

    return calculate


def _comparing(function: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float | UndecidedInteger):
            return NotImplemented
        found = bool(function(_plain(self), _plain(other)))
        return self.decisions.condition(found, "a comparison with a value that is not known")

    return compare


def _methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in (*_ARITHMETIC, *_OF_BITS):
        function = getattr(operator, name)
        dunder = name.strip("_")
        yield f"__{dunder}__", _calculating(function, swapped=False)
        yield f"__r{dunder}__", _calculating(function, swapped=True)
    for name in _UNARY:
        yield f"__{name}__", _calculating(getattr(operator, name), swapped=False)
    for name in _COMPARISONS:
        yield f"__{name}__", _comparing(getattr(operator, name))


for _name, _method in _methods():
    if _name.strip("_").removeprefix("r") not in [one.strip("_") for one in _OF_BITS]:
        setattr(UndecidedFloat, _name, _method)
    setattr(UndecidedInteger, _name, _method)


def teach_math() -> None:
    """Have the functions of `math` tell of such numbers: they take a float's value as it is."""
    for name in (*_DECIDING_FUNCTIONS, *_ROUNDING_FUNCTIONS, *_FLOAT_FUNCTIONS):
        setattr(math, name, _observed(name, getattr(math, name)))


def _observed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    deciding = name in _DECIDING_FUNCTIONS
    rounding = name in _ROUNDING_FUNCTIONS

    def function(*args: Any, **kwargs: Any) -> Any:
        decisions = unknown_in(args)
        if decisions is None:
            return original(*args, **kwargs)
        found = original(*(_plain(one) for one in args), **kwargs)
        if deciding:
            return decisions.condition(found, f"math.{name}() of a value that is not known")
        if rounding:
            decisions.depends(f"math.{name}() of a value that is not known")
            return found
        return known_as(found, decisions)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "math"
    return function
