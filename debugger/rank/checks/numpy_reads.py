"""Reads and writes by numpy's own methods and functions, as Python's profiler hears of their calls.

`t.numpy()` reads nothing: what is done with the array does, and torch has no part in that. Python
tells a profiler of each call of a method, with the array that it belongs to, and of those functions
of numpy that are written in Python. It tells nothing of operators (`array + 1`, `array[0]`) and of
ufuncs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .layout import MemoryLayout, of_array


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WHOLE = _names(
    "all any argmax argmin argsort clip copy cumprod cumsum dot dump dumps flatten max mean min "
    "nonzero prod ptp repeat round std sum tobytes tofile tolist var"
)
"""Methods that look at each element, and functions of the same names."""
_FUNCTIONS = _names(
    "allclose amax amin array_equal array_equiv assert_array_compare average bincount corrcoef cov "
    "diff histogram isclose median nanmax nanmean nanmin nanstd nansum nanvar norm percentile "
    "quantile savetxt sort trapezoid unique write_array"
)
_IN_PART = _names("choose compress item searchsorted take trace")
"""Methods that look at some elements, and functions of the same names."""
_SHOWN = _names(
    "array2string array_repr array_str _array_repr_implementation _array_str_implementation"
)
"""Functions that show an array, a large one in part."""
_WRITES = {"fill": True, "partition": True, "sort": True, "put": False}
"""Methods that write: whether each element."""

Access = tuple[MemoryLayout, str, bool]
"""The memory accessed, "read" or "written", and whether each element of it is."""


def is_array(given: Any) -> bool:
    """Whether it is one of numpy's, which the program has loaded then."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    return kind is not None and isinstance(given, kind)


def accesses(frame: FrameType, event: str, called: Any) -> Iterator[Access]:
    """The arrays whose elements this call looks at; given is what a profiler is."""
    if event == "c_call":
        yield from _of_method(called)
    elif event == "call":
        yield from _of_function(frame)


def _of_method(called: Any) -> Iterator[Access]:
    name = called.__name__
    array = getattr(called, "__self__", None)
    if name in _WHOLE or name in _IN_PART:
        how, whole = "read", name in _WHOLE
    elif name in _WRITES:
        how, whole = "written", _WRITES[name]
    else:
        return
    if is_array(array):
        yield of_array(array), how, whole


def _of_function(frame: FrameType) -> Iterator[Access]:
    code = frame.f_code
    name = code.co_name
    whole = name in _WHOLE or name in _FUNCTIONS
    if not whole and name not in _IN_PART and name not in _SHOWN:
        return
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] != "numpy":
        return
    given = frame.f_locals
    for parameter in code.co_varnames[: code.co_argcount]:
        if parameter != "out" and is_array(given.get(parameter)):
            yield of_array(given[parameter]), "read", whole
