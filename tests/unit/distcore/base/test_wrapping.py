"""A function around another is that one to all who ask, and to `warnings` it is not there."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import pytest

from distcore.base.wrapping import around


def warns(depth: int) -> int:
    """What somebody else has written."""
    warnings.warn("something", stacklevel=depth)
    return depth


def wrapped() -> Any:
    @around(warns)
    def ours(*args: Any) -> Any:
        return warns(*args)

    return ours


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_warning_names_the_same_line(depth: int) -> None:
    def call(function: Any) -> tuple[str, int]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert function(depth) == depth
        (one,) = seen
        return one.filename, one.lineno

    calls = [call(function) for function in (warns, wrapped(), around(warns)(wrapped()))]
    assert calls == [calls[0]] * 3


def test_a_filter_by_module_holds() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module=__name__)
        with pytest.raises(UserWarning, match="something"):
            wrapped()(2)


def test_it_is_the_other_one_to_all_who_ask() -> None:
    ours = wrapped()
    assert (ours.__name__, ours.__doc__) == ("warns", "What somebody else has written.")
    assert list(inspect.signature(ours).parameters) == ["depth"]
    assert inspect.unwrap(ours) is warns
    assert ours.__code__.co_filename.startswith(__file__)


def test_what_is_not_written_in_python_is_taken_as_it_is() -> None:
    given = functools.partial(warns, 1)
    assert around(warns)(given) is given
