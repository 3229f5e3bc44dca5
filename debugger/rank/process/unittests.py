"""unittest keeps what a test raised to itself, and ends the rank with status 1 for it. (pytest's is
reported by the plugin.)"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from ...hook.loading import when_imported
from ..torch_private.probe import before


def observe(caught: Callable[[BaseException], None]) -> None:
    """`caught` is called with each error that makes a test fail."""

    def watch(module: Any) -> None:
        # (test, error), (test, error), (test, subtest, error or None for one that has passed)
        for name, position in {"addError": 1, "addFailure": 1, "addSubTest": 2}.items():
            before(module.TestResult, name, partial(_tell, caught, position))

    when_imported("unittest.result", watch)


def _tell(
    caught: Callable[[BaseException], None], position: int, _: Any, *args: Any, **kwargs: Any
) -> None:
    with contextlib.suppress(Exception):
        error = (*args, *kwargs.values())[position]
        if error is not None:
            caught(error[1])
