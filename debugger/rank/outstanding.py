"""The asynchronous calls that nobody has seen finish yet.

The heartbeat looks at them, so that the record tells of their completion although the program
never waits, or waits where this layer cannot see it (a future inside DDP's C++ reducer).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tracked_work import ProxyFuture, TrackedWork

_LIMIT = 4096

works: dict[int, weakref.ref[TrackedWork]] = {}
"""By call number. A call stays until it is done; one whose handle was dropped, until `poll`."""
_proxies: dict[int, ProxyFuture] = {}


def add_proxy(number: int, proxy: ProxyFuture) -> None:
    """Somebody may be waiting for this future without our knowledge."""
    _proxies[number] = proxy
    if len(_proxies) > _LIMIT:
        _proxies.pop(next(iter(_proxies)), None)


def remove(number: int) -> None:
    """The call is over."""
    works.pop(number, None)
    _proxies.pop(number, None)


def oldest_awaited() -> int | None:
    """The first call whose future was handed out and is not complete."""
    return min(_proxies, default=None)


def poll() -> None:
    """Record the completion of calls that ended by themselves."""
    for number, reference in list(works.items()):
        work = reference()
        if work is None:
            works.pop(number, None)  # the program dropped the handle
        else:
            work.is_completed()


def fail_all(error: BaseException) -> bool:
    """End every wait for a future with this error; whether there was one to end."""
    proxies = list(_proxies.values())
    for proxy in proxies:
        proxy.fail(error)
    return bool(proxies)


def forget() -> None:
    """In a forked child: these calls are the parent's."""
    works.clear()
    _proxies.clear()
