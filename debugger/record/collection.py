"""Python's collector of garbage, kept away where it would only take time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Within this, Python collects nothing by itself: where little that is made has cycles, looking
    for them takes as long as the making."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
