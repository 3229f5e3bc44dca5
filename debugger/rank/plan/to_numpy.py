"""Numbers that are not known, on their way into numpy: it takes a float's value as it is.

Its functions of arrays ask no number of a list anything. Those of single numbers do: see
`numbers.Undecided.__array_ufunc__`.
"""

from __future__ import annotations

import functools
from typing import Any

from .numbers import LOST, UndecidedNumber, plain, unknown_in

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
        usual = getattr(numpy, name, None)
        if usual is not None:
            setattr(numpy, name, _telling(usual))


def _telling(usual: Any) -> Any:
    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        decisions = unknown_in(_ends(args[0])) if args else None
        if decisions is not None:
            decisions.depends(LOST)
            args = (plain(args[0]), *args[1:])
        return usual(*args, **kwargs)

    return function


def _ends(given: Any) -> Any:
    """Returns the part of the arguments in which such numbers would be found."""
    if isinstance(given, list | tuple) and len(given) > _MANY:
        return [*given[:_MANY], given[-1]]
    return given if isinstance(given, list | tuple | UndecidedNumber) else None
