"""unittest keeps what a test raised to itself, and ends the rank with status 1 for it. (pytest's is
reported by the plugin.)"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import wrapt

from distcore.base.wrapping import around


def observe(caught: Callable[[BaseException], None]) -> None:
    """`caught` is called with each error that makes a test fail."""

    def watch(module: Any) -> None:
        result = module.TestResult
        # (test, error), (test, error), (test, subtest, error or None for one that has passed)
        for name, position in {"addError": 1, "addFailure": 1, "addSubTest": 2}.items():
            setattr(result, name, _telling(getattr(result, name), position, caught))

    wrapt.register_post_import_hook(watch, "unittest.result")


def _telling(
    original: Callable[..., Any], position: int, caught: Callable[[BaseException], None]
) -> Callable[..., Any]:
    @around(original)
    def method(result: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            error = (*args, *kwargs.values())[position]
            if error is not None:
                caught(error[1])
        return original(result, *args, **kwargs)

    return method
