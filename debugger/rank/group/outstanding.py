"""The calls of this process that nobody has seen finish yet.

The one table of them that a process has: it is used in every call, where a way to an object that
would be handed in costs more than the table itself. A test of one part of it begins with `forget`.

The heartbeat looks at them, so that the record tells of their completion although the program
never waits, or waits where this layer cannot see it (a future inside DDP's C++ reducer).
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from dataclasses import dataclass
from types import CodeType
from typing import Any, Protocol

from ...record.writing.slots import GroupSlot
from ..record import call_site
from ..record.recorder import Recorder


class Tracked(Protocol):
    """The handle of a call that the program was given."""

    def poll(self) -> object:
        """Put on record that the call is complete, if it is."""


@dataclass
class Followed:
    """A call of this number that the program has waited for, and whose GPU is not there yet;
    `group` is None for messages, as the record has it."""

    recorder: Recorder
    group: GroupSlot | None
    number: int
    work: Any
    asked_again: bool = False


Function = tuple[str, str]
"""A file, and the name of a function in it."""


class Handle(weakref.ref[Tracked]):
    """A call's handle, as long as the program has it; the call's number, the backend's work."""

    __slots__ = ("number", "work")

    number: int
    work: Any


@dataclass
class AskedHandle:
    """A thread that has asked in vain whether a call is over, so many times, at this line. `codes`:
    the functions in which it did so, innermost first."""

    ident: int
    native_id: int
    codes: tuple[CodeType, ...]
    site: int
    times: int = 1


MOST_UNFINISHED = 64
"""The most calls told at the end with which the GPU was never through."""
works: dict[int, Handle] = {}
"""By call number. A call stays until it is done; one whose handle was dropped, until `poll`."""
awaited: dict[int, Tracked] = {}
"""The calls whose future was handed out: somebody may be waiting without our knowledge, and may
have dropped the handle (DDP does), so it is kept here until the call is done."""
kept: dict[int, Tracked] = {}
"""Calls of torch's own whose handle the program is given, and need not wait for."""
asked: dict[int, AskedHandle] = {}
"""The calls of which the program has asked in vain whether they are over."""
barriers: dict[int, dict[Function, int]] = {}
"""The last barriers that groups have returned from, for groups where that means that all calls
before are complete: by the group's index and the function that called it, the barrier's number."""
unwaited: deque[int] = deque()
"""Calls whose handle was dropped before they were complete."""
followed: dict[Any, deque[Followed]] = {}
"""By group, the calls that go on on a GPU, in their order: those of one group end in it."""
broken: deque[int] = deque(maxlen=MOST_UNFINISHED)
"""The numbers of followed calls that failed on their GPU: the last ones."""
_gathering: list[None] = []
"""An entry for each group that gathers calls."""


def watch(tracked: Tracked, number: int, work: Any) -> None:
    """A call was made; `tracked` is its handle, `work` the backend's."""
    handle = works[number] = Handle(tracked, dropped)
    handle.number = number
    handle.work = work


def dropped(handle: Handle) -> None:
    """The program has dropped the handle of a call that nobody has seen finish.

    Runs at any moment, on any thread: it takes no lock and puts nothing on record.
    """
    if _gathering or sys.exc_info()[0] is not None:
        return  # a coalesced call is waited for as a whole; an exception leaves everything behind
    try:
        frame = sys._getframe(1)
    except ValueError:
        return  # freed by a thread of C++, where no code of the program runs
    if call_site.frame_kind(frame.f_code.co_filename) == call_site.OWN:
        return  # torch's own: DDP's join() knows that it need not wait
    if works.get(handle.number) is handle and not handle.work.is_completed():
        unwaited.append(handle.number)


def gather(on: bool) -> None:
    """Calls that are made now are coalesced: their own handles are none."""
    if on:
        _gathering.append(None)
    elif _gathering:
        _gathering.pop()


def keep(work: Any) -> None:
    """Holds the handle of this call, if it is one, until the call is done: the program need not
    wait."""
    number = getattr(work, "_number", None)
    if number in works:
        kept[number] = work


def remove(number: int) -> None:
    """The call is over."""
    works.pop(number, None)
    awaited.pop(number, None)
    kept.pop(number, None)
    asked.pop(number, None)


def oldest_awaited() -> int | None:
    """The first call whose future was handed out and is not complete."""
    return min(list(awaited), default=None)


def poll() -> None:
    """Record the completion of calls that ended by themselves."""
    for number, handle in list(works.items()):
        if handle() is None:
            remove(number)  # the program dropped the handle
        # Asked without a hold on the handle: the program may drop its own meanwhile.
        elif handle.work.is_completed() and (work := handle()) is not None:
            work.poll()


def pending() -> list[int]:
    """The calls whose handles are still there, that are not complete, and of which nobody asked for
    the future."""
    return [
        number
        for number, handle in list(works.items())
        if number not in awaited and number not in kept and not handle.work.is_completed()
    ]


def forget() -> None:
    """Forgets the calls in a forked child: they are the parent's."""
    works.clear()
    awaited.clear()
    kept.clear()
    asked.clear()
    barriers.clear()
    unwaited.clear()
    followed.clear()
    broken.clear()
