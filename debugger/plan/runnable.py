"""The threads of a simulation: who goes on next, who waits for what, and who is woken by it."""

from __future__ import annotations

import heapq
from collections.abc import Hashable

from .meetings import End
from .standing import Membership, Standing, Stop
from .threads import Doing


class Thread:
    """One thread of a rank. `stop`: what it stands still in."""

    __slots__ = ("at", "clock_ns", "doings", "makes", "order", "rank", "stop", "yielded")

    def __init__(self, rank: Standing, doings: list[Doing], order: int, clock_ns: int) -> None:
        self.rank = rank
        self.doings = doings
        self.order = order
        self.clock_ns = clock_ns
        self.at = 0
        self.stop: Stop | None = None
        self.makes: Membership | None = None
        """The group that it has when what it waits for is there."""
        self.yielded = False


class Runnable:
    """The threads that may go on; the one that is furthest behind goes first."""

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, Thread]] = []
        self._parked: dict[Hashable, list[Thread]] = {}

    def push(self, thread: Thread) -> None:
        """It may go on from its own time on."""
        heapq.heappush(self._ready, (thread.clock_ns, thread.order, thread))

    def pop(self) -> Thread | None:
        """The next one; None when nobody may go on."""
        return heapq.heappop(self._ready)[2] if self._ready else None

    def stands_still(self, thread: Thread, end: End, stop: Stop) -> bool:
        """The thread waits for that; False, so that it does not go on."""
        thread.stop = stop
        return self.park(thread, end)

    def over(self, end: End, now_ns: int) -> None:
        """It is over: who waits for it goes on."""
        end.done_ns = now_ns
        self.unpark(end, now_ns)

    def park(self, thread: Thread, what: Hashable) -> bool:
        """The thread goes on after `unpark` of the same; False, so that it does not go on."""
        self._parked.setdefault(what, []).append(thread)
        return False

    def unpark(self, what: Hashable, now_ns: int) -> None:
        for thread in self._parked.pop(what, ()):
            thread.clock_ns = max(thread.clock_ns, now_ns)
            self.push(thread)
