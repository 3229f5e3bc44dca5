"""Python's collector of garbage, kept away where it would only take time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keeps Python from collecting by itself: where little that is made has cycles, looking for
    them takes as long as the making."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
