"""The guards of groups, by which their ranks agree on each call while the level is DETAIL.

At every other level nothing is loaded of what agrees, which has a network of distcore's below it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ...hook.loading import core
from ...record.wording import by_device
from ..log.debug_level import DebugLevel
from ..record.recorder import GroupRecord, Recorder
from ..torch_private.gloo import GlooSockets

if TYPE_CHECKING:
    from .collectives import GroupGuard
    from .messages import BlockingMessages

UNREACHABLE = frozenset({"fake", "threaded"})
"""Backends whose ranks are no processes of their own."""


class Agreement:
    """The agreement of the ranks of this process's groups on what they do."""

    def __init__(self, recorder: Recorder, level: DebugLevel, sockets: GlooSockets) -> None:
        self._recorder = recorder
        self._level = level
        self._sockets = sockets
        self._blocking: BlockingMessages | None = None
        self._guards: weakref.WeakSet[GroupGuard | Unguarded] = weakref.WeakSet()

        def switch_all(on: bool) -> None:
            for guard in list(self._guards):
                guard.switch(on, at_once=True)

        level.on_detail(switch_all)

    def guard(self, record: GroupRecord, store: Any) -> None:
        """Put a guard in front of the new group's calls; at DETAIL its ranks are connected now."""
        if len(record.ranks) < 2 or not _reaches(record):
            return
        record.keeper = keeper = Unguarded(record, lambda: self._made(record, store))
        self._guards.add(keeper)
        if self._level.is_detail():
            keeper.switch(True)
            channel = record.keeper.open(record.timeout_s)
            from . import messages  # loaded with the guard

            if channel is not None and record.backend == messages.COMPARES:
                # From the first message on, or never: they are compared by number.
                self._blocking = self._blocking or messages.BlockingMessages()
                pairs = messages.PairGuard(self._recorder, record, channel, self._blocking)
                record.pairs = pairs.enter

    def _made(self, record: GroupRecord, store: Any) -> GroupGuard:
        with core:
            from .collectives import GroupGuard
        made = GroupGuard(self._recorder, record, store, self._sockets)
        self._guards.add(made)
        return made

    def monitored_barrier(
        self, record: GroupRecord, store: Any, backends: Callable[..., None]
    ) -> Callable[..., None]:
        """The group's monitored_barrier; `backends`: the one of its backend, for a group without
        ranks of its own. Nobody is to be waited for there, and no store to do it through."""
        if not _reaches(record):
            return backends
        recorder = self._recorder
        namesakes = recorder.namesakes(record)

        @cache
        def monitored() -> Callable[..., None]:
            with core:
                from .monitored_barrier import monitor  # most programs never call it
            return monitor(recorder, record, store, namesakes)

        return lambda *args, **named: monitored()(*args, **named)


class Unguarded:
    """Holds the place of a group's guard until the level is DETAIL for the first time. `make()`
    returns the guard."""

    def __init__(self, record: GroupRecord, make: Callable[[], GroupGuard]) -> None:
        self._record = record
        self._make: Callable[[], GroupGuard] | None = make
        self.coalesces = False

    def switch(self, on: bool, at_once: bool = False) -> None:
        """See `GroupGuard.switch`."""
        if on and self._make is not None:
            self._record.keeper = made = self._make()
            made.coalesces = self.coalesces
            self._make = None
            made.switch(True, at_once)

    def close(self) -> None:
        """The group ends on this rank, is aborted, or is a forked child's parent's."""
        self._make = None  # which has the store: it may be the server that the next world must not
        # meet again

    abort = retract = close


def _reaches(record: GroupRecord) -> bool:
    """Whether the group's ranks are processes that a network leads to."""
    return UNREACHABLE.isdisjoint(by_device(record.backend).values())
