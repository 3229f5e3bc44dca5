"""The asynchronous calls that nobody has seen finish yet.

The heartbeat looks at them, so that the record tells of their completion although the program
never waits, or waits where this layer cannot see it (a future inside DDP's C++ reducer).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tracked_work import TrackedWork

works: dict[int, weakref.ref[TrackedWork]] = {}
"""By call number. A call stays until it is done; one whose handle was dropped, until `poll`."""
awaited: dict[int, TrackedWork] = {}
"""The calls whose future was handed out: somebody may be waiting without our knowledge, and may
have dropped the handle (DDP does), so it is kept here until the call is done."""


def remove(number: int) -> None:
    """The call is over."""
    works.pop(number, None)
    awaited.pop(number, None)


def oldest_awaited() -> int | None:
    """The first call whose future was handed out and is not complete."""
    return min(list(awaited), default=None)


def poll() -> None:
    """Record the completion of calls that ended by themselves."""
    for number, reference in list(works.items()):
        work = reference()
        if work is None:
            remove(number)  # the program dropped the handle
        else:
            work.poll()


def forget() -> None:
    """In a forked child: these calls are the parent's."""
    works.clear()
    awaited.clear()
