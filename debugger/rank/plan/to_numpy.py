"""Numbers that are not known, on their way into numpy: it takes a float's value as it is.

Its functions of arrays ask no number of a list anything. Those of single numbers do: see
`numbers.Undecided.__array_ufunc__`.
"""

from __future__ import annotations

import functools
from typing import Any

from .numbers import LOST, Undecided, plain, unknown_in

_OF_LISTS = (
    *("array", "asarray", "asanyarray", "ascontiguousarray", "fromiter"),
    *("mean", "sum", "prod", "std", "var", "median", "average", "percentile", "quantile"),
    *("min", "max", "amin", "amax", "argmin", "argmax", "sort", "argsort", "cumsum", "diff"),
    *("nanmean", "nansum", "nanmin", "nanmax", "stack", "concatenate", "isclose", "allclose"),
)
_MANY = 64
"""Who has a longer list of numbers of which some are not known has one at an end of it."""


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
        for one in args[:1]:
            if isinstance(one, list | tuple | Undecided):
                decisions = unknown_in(one if _is_short(one) else [*one[:_MANY], one[-1]])
                if decisions is not None:
                    decisions.depends(LOST)
                    args = (plain(one), *args[1:])
        return usual(*args, **kwargs)

    return function


def _is_short(given: Any) -> bool:
    return isinstance(given, Undecided) or len(given) <= _MANY
