"""The times at which the supervisor collects its garbage: between two looks, and where there may be
much of it.

A full collection goes through all that is known of all ranks. Of 16,384 that takes a second, and
what a look reads anew starts several of them in the middle of it: they took two fifths of the time
from a fault to its verdict. What was read before goes as soon as nobody refers to it; so little is
left for a collector that it can wait until many objects have come that have not gone again.
"""

from __future__ import annotations

import gc

MOST_MORE_OBJECTS = 100_000
"""Than at the last collection: about 10 MB."""


def collect_where_due() -> None:
    """Collect, if so many more objects are there. Python counts those that come and that go, also
    within `no_collection`, in which the supervisor runs."""
    if gc.get_count()[0] > MOST_MORE_OBJECTS:
        gc.collect()
