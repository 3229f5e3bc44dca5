"""Waits in a test for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 150.0


def until(
    condition: Callable[[], object], what: str | Callable[[], str] = "", limit_s: float = LIMIT_S
) -> None:
    """Return when it holds. Raises AssertionError, with what did not come, when the time is up."""
    until_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until_s:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {limit_s:g} s: {said or condition}")
        time.sleep(0.01)
