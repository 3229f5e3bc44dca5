"""Numbers out of tensors whose values a plan does not have: they add up, print, and tell when the
program decides something by them. Such decisions are put on record, and taken.

Nothing is guessed silently: each decision is reported once, with the line of the program. The way
that is followed is what the values that stand in would say, or what was asked for. Where that way
leads into an `assert` that fails or an `if` that raises, the likely way is the other one.

What is to be a float is one, for it is printed, kept and handed on everywhere. What is to be an
integer is none: Python and torch take an integer's value where they need an index or a size without
asking it, and a shape would be guessed silently. It only says that it is one.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import linecache
import math
import operator
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar

from ...record.writing.program_writer import ProgramWriter
from ..record import call_site
from ..record.recorder import Recorder
from ..torch_private.probe import instead

_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod")
_UNARY = ("neg", "pos", "abs")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_OF_BITS = ("and_", "or_", "xor", "lshift", "rshift")
_VALUE = "a value that is not known"
SIZE = "an index or a size that is not known"
LOST = "values that are not known leave torch for numpy, and are lost sight of"
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
LIKELY = {"isfinite": True, **dict.fromkeys(("isnan", "isinf", "isposinf", "isneginf"), False)}
"""The results of functions of this name for a number that is not known: most are finite."""
_ROUNDING_FUNCTIONS = ("ceil", "floor", "trunc")


_COMPARISONS_OF_TESTS = "/torch/testing/"


@dataclass(eq=False)
class Decisions:
    """The decisions of this process, on record there. `way` is "likely", "true" or "false"."""

    _way: str
    _recorder: Recorder
    _writer: ProgramWriter
    _told: set[tuple[int, str]] = field(default_factory=set)
    _silent: int = 0

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """Leaves out decisions made within, which are of no consequence: how a tensor is
        printed."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def depends(self, what: str, frame: FrameType | None = None) -> None:
        """The program goes on by a value that is not known."""
        if self._silent:
            return
        site = self._recorder.safe_site(frame or sys._getframe(1))
        if (site, what) not in self._told:
            self._told.add((site, what))
            self._writer.undecided(site, what)

    def condition(self, stand_in: bool, what: str) -> bool:
        """Decides which way to go. `stand_in`: the way of the values that stand in."""
        if self._silent:
            return stand_in
        frame = sys._getframe(1)
        self.depends(what, frame)
        if self._way != "likely":
            return self._way == "true"
        # The way on which the user's line does not fail; `stand_in` where both go on.
        found: FrameType | None = frame
        while found is not None and found.f_code.co_filename.startswith(call_site.DIRECTORIES[0]):
            found = found.f_back
        if found is not None and _COMPARISONS_OF_TESTS in found.f_code.co_filename:
            return True
        user = call_site.find(found)
        if user is None:
            return stand_in
        wanted = _wanted(user.f_code.co_filename, user.f_lineno)
        return stand_in if wanted is None else wanted


@functools.lru_cache(maxsize=1024)
def _wanted(file: str, line: int) -> bool | None:
    """Returns what a condition at this line must be for the program to go on; None where it may be
    both."""
    for node in _statements(file):
        last = getattr(node, "end_lineno", None) or node.lineno
        if isinstance(node, ast.Assert) and node.lineno <= line <= last:
            return _passes(node.test)
        raises = isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)
        if raises and node.lineno <= line <= (node.test.end_lineno or 0):
            return not _passes(node.test)
    return None


@functools.lru_cache(maxsize=64)
def _statements(file: str) -> tuple[ast.Assert | ast.If, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Assert | ast.If))


def _passes(test: ast.expr) -> bool:
    """Returns what the condition within a test must be for the test to hold: `not found` and `found
    is False` want it to be false."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            return not _passes(operand)
        case ast.Compare(left, [ast.Is() | ast.Eq()], [ast.Constant(bool() as wanted)]):
            return _passes(left) == wanted
        case ast.Compare(left, [ast.IsNot() | ast.NotEq()], [ast.Constant(bool() as wanted)]):
            return _passes(left) != wanted
    return True


class UndecidedNumber:
    """A number that is not known. `decisions` is told what the program does with it."""

    decisions: Decisions
    of_process: ClassVar[Decisions]
    """The decisions that are told of numbers made by the type alone, as `statistics` makes its
    results, or sent by another rank."""
    any_made: ClassVar[bool] = False
    """Whether there has been one in this process: else nobody need look for them."""
    __slots__ = ()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        del memo
        return self

    def __bool__(self) -> bool:
        return self.decisions.condition(bool(_plain(self)), f"a condition on {_VALUE}")

    def __float__(self) -> float:
        self.decisions.depends(f"float() of {_VALUE}, which is lost sight of")
        return float(_plain(self))

    def __hash__(self) -> int:
        self.decisions.depends(f"the hash of {_VALUE}")
        return hash(_plain(self))

    def __reduce__(self) -> Any:
        return (type(_plain(self)), (_plain(self),))

    def __str__(self) -> str:
        return str(_plain(self))

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(_plain(self), form)

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **kwargs: Any) -> Any:
        """A function of numpy of it, and of whatever else."""
        found = getattr(ufunc, method)(*map(_plain, given), **kwargs)
        if getattr(found, "shape", None) != ():
            self.decisions.depends(LOST)
            return found
        if found.dtype.kind == "b":
            return self.decisions.condition(bool(found), f"{ufunc.__name__}() of {_VALUE}")
        return known_as(found.item(), self.decisions)


class UndecidedFloat(UndecidedNumber, float):
    """An undecided number that is a float to all code."""

    decisions: Decisions

    def __new__(cls, value: Any, decisions: Decisions | None = None) -> UndecidedFloat:
        made = float.__new__(cls, _plain(value))
        made.decisions = decisions or cls.of_process
        UndecidedNumber.any_made = True
        return made

    def __int__(self) -> int:
        self.decisions.depends("an integer made of a value that is not known")
        return int(_plain(self))

    __trunc__ = __floor__ = __ceil__ = __int__

    def is_integer(self) -> bool:
        return self.decisions.condition(float.is_integer(self), f"is_integer() of {_VALUE}")

    def __round__(self, digits: Any = None) -> Any:
        return known_as(round(_plain(self), digits), self.decisions)


class UndecidedInteger(UndecidedNumber):
    """An undecided number that is an integer only to code that asks it."""

    __slots__ = ("decisions", "value")

    def __init__(self, value: int, decisions: Decisions | None = None) -> None:
        self.value = value
        self.decisions = decisions or self.of_process
        UndecidedNumber.any_made = True

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class for isinstance(), by which code that writes numbers down asks."""
        return type(self.value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.value, name)
        self.decisions.depends(f"{name} of {_VALUE}")
        return found

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """A function of torch where it takes a number: who follows values has heard of it."""
        __tracebackhide__ = True
        del cls, types
        return func(*plain(args), **{key: plain(one) for key, one in (kwargs or {}).items()})

    def __index__(self) -> int:
        self.decisions.depends(SIZE)
        return int(self.value)

    __int__ = __index__

    def __trunc__(self) -> Any:
        return self

    __floor__ = __ceil__ = __trunc__

    def __invert__(self) -> Any:
        return known_as(~self.value, self.decisions)

    def as_integer_ratio(self) -> tuple[int, int]:
        """For `statistics`, whose results are of this type again."""
        return int(self.value), 1

    def __round__(self, digits: Any = None) -> Any:
        del digits
        return self


def plain(values: Any) -> Any:
    """The numbers that stand in, also in lists of them."""
    if isinstance(values, UndecidedNumber):
        return _plain(values)
    if type(values) in (list, tuple):
        return type(values)(map(plain, values))
    return values


def _plain(value: Any) -> Any:
    """The number that stands in."""
    if isinstance(value, UndecidedFloat):
        return float.__add__(value, 0.0)
    return value.value if isinstance(value, UndecidedInteger) else value


def known_as(value: Any, decisions: Decisions) -> Any:
    """This number, or each of a list, as one that is not known."""
    if isinstance(value, list | tuple):
        return type(value)(known_as(one, decisions) for one in value)
    if isinstance(value, float):
        return UndecidedFloat(value, decisions)
    if isinstance(value, int):
        return UndecidedInteger(value, decisions)
    return value


def unknown_in(values: Any, depth: int = 3) -> Decisions | None:
    """Returns the decisions of a number that is not known, among these or in lists of them."""
    if not UndecidedNumber.any_made:
        return None
    if isinstance(values, UndecidedNumber):
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
        function = divmod if name == "divmod" else getattr(operator, name)
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


def teach(decisions: Decisions) -> None:
    """Have the functions of the standard library that take such numbers as they are tell of them:
    those of `math` take a float's value, and `json` knows no integer that is none."""
    UndecidedNumber.of_process = decisions
    for name in (*_DECIDING_FUNCTIONS, *_ROUNDING_FUNCTIONS, *_FLOAT_FUNCTIONS):
        original = getattr(math, name)
        observed = _observed(name, original)
        for module in (math, statistics):  # which has imported some of them by name
            if getattr(module, name, None) is original:
                setattr(module, name, observed)
    usual = json.JSONEncoder.default

    def default(encoder: Any, given: Any) -> Any:
        return _plain(given) if isinstance(given, UndecidedInteger) else usual(encoder, given)

    setattr(json.JSONEncoder, "default", default)  # noqa: B010


def _observed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    deciding = name in _DECIDING_FUNCTIONS
    rounding = name in _ROUNDING_FUNCTIONS

    def function(*args: Any, **kwargs: Any) -> Any:
        decisions = unknown_in(args)
        if decisions is None:
            return original(*args, **kwargs)
        found = original(*(_plain(one) for one in args), **kwargs)
        if deciding:
            likely = LIKELY.get(name, found)
            return decisions.condition(likely, f"math.{name}() of {_VALUE}")
        if rounding:
            decisions.depends(f"math.{name}() of {_VALUE}")
            return found
        return known_as(found, decisions)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "math"
    return function


_OF_LISTS = (
    *("array", "asarray", "asanyarray", "ascontiguousarray", "fromiter"),
    *("mean", "sum", "prod", "std", "var", "median", "average", "percentile", "quantile"),
    *("min", "max", "amin", "amax", "argmin", "argmax", "sort", "argsort", "cumsum", "diff"),
    *("nanmean", "nansum", "nanmin", "nanmax", "stack", "concatenate", "isclose", "allclose"),
)
_MANY = 64
"""The longest list that is searched whole; a longer one with unknown numbers has one at an end of
it."""


def teach_numpy(numpy: Any) -> None:
    """Have its functions tell where they are given such numbers."""
    for name in _OF_LISTS:
        instead(numpy, name, _telling)


def _telling(usual: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    decisions = unknown_in(_ends(args[0])) if args else None
    if decisions is not None:
        decisions.depends(LOST)
        args = (plain(args[0]), *args[1:])
    return usual(*args, **kwargs)


def _ends(given: Any) -> Any:
    """Returns the part of the arguments in which such numbers would be found."""
    if isinstance(given, list | tuple) and len(given) > _MANY:
        return [*given[:_MANY], given[-1]]
    return given if isinstance(given, list | tuple | UndecidedNumber) else None
