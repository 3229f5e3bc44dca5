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


MOST_MORE_OBJECTS = 100_000
"""More than at the last collection: about 10 MB."""


def collect_where_due() -> None:
    """Collects garbage if so many more objects are there. Python counts those that come and that
    go, also within `no_collection`.

    The supervisor calls it between two looks. A full collection goes through all that is known of
    all ranks: of 16,384 that takes a second, and what a look reads anew starts several of them in
    the middle of it, which took two fifths of the time from a fault to its verdict. What was read
    before goes as soon as nobody refers to it, so a collector finds little and can wait.
    """
    if gc.get_count()[0] > MOST_MORE_OBJECTS:
        gc.collect()
