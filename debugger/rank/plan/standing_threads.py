"""The threads of a planned rank, as one of them tells that waits for an answer: whether any of the
others may yet do something before an answer comes.

A thread that waits for another one of its process, and for that without a limit of time, can do
nothing before that one has. So where the main thread joins a thread whose call never ends, the rank
stands in that call.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from types import FrameType
from typing import Any

from ...system.proc import times_slept
from ...system.threads import is_in_lock
from ..limits import LONGEST_WAIT_S
from ..record import call_site, frames
from .exchange import Planner
from .scheduler import ASKS, JOINS, MOVES

_ASKING = frozenset({Planner.ask.__code__, Planner._read.__code__})
_WAITS = frozenset({"wait", "join", "_wait_for_tstate_lock", "_shutdown"})
"""Functions of `threading` that stand in a lock which another thread holds."""
_IDLE = ("concurrent.futures.thread", "_worker")


class _In(Enum):
    """The state of a thread: a wait for an answer, for another thread, for one with a limit of
    time, or anything else."""

    ASK = auto()
    LOCK = auto()
    TIMED_LOCK = auto()
    ELSE = auto()


class StandingThreads:
    """`site(frame)`: the number of the user's line at or above a frame of another thread."""

    def __init__(self, site: Callable[[FrameType | None], int]) -> None:
        self._site = site

    def tell(self) -> list[Any]:
        """The fields of a `Standing`. It is so where the next answer is the same: a thread that has
        been woken and did not run yet has run by then."""
        own = threading.get_ident()
        found = frames.of_other_threads()
        names = dict(_native_ids())
        stands = {ident: _stands_in(frame, names.get(ident)) for ident, frame in found.items()}
        main = threading.main_thread().ident or 0
        users = {ident for ident, frame in found.items() if call_site.users(frame) is not None}
        # A timer will call what the program gave it.
        timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
        users |= {one.ident or 0 for one in timers}
        others = {ident: one for ident, one in stands.items() if ident != main}
        word, unsure = MOVES, False
        where = stands.get(main, _In.ASK)  # it is this one
        if where is _In.ASK:
            word = ASKS
            unsure = any(others[ident] is _In.ELSE for ident in users & others.keys())
        elif where is _In.LOCK and (
            _joins_who_asks(main, found, stands, own) or _all_wait(others, users)
        ):
            word = JOINS
        rows = []
        for ident, native in names.items():
            # Python keeps a name for a thread of C++ that called it once, and has long ended.
            if ident not in stands or stands[ident] is _In.TIMED_LOCK:
                continue
            slept = times_slept(native)
            if slept is None:
                word = MOVES
            rows.append([native, slept])
        if any(one.ident is None for one in threading.enumerate()):
            word = MOVES  # it has been started, and has not run yet
        site = self._site(found[main]) if word == JOINS else 0
        return [word, unsure, site, sorted(rows)]


def _native_ids() -> Iterator[tuple[int, int]]:
    for thread in threading.enumerate():
        if thread.ident is not None and thread.native_id is not None:
            # In a forked process the main thread has its parent's, before Python 3.13.
            is_main = thread is threading.main_thread()
            yield thread.ident, os.getpid() if is_main else thread.native_id


def _stands_in(frame: FrameType, native: int | None) -> _In:
    module, name = frame.f_globals.get("__name__"), frame.f_code.co_name
    above = frames.caller(frame)
    if frame.f_code in _ASKING or (above is not None and above.f_code in _ASKING):
        return _In.ASK
    if (module == "threading" and name in _WAITS) or _in_bare_loop(frame):
        limit_s = frames.variables(frame).get("timeout")
        in_time = limit_s is not None and 0 <= limit_s <= LONGEST_WAIT_S
        return _In.TIMED_LOCK if in_time else _In.LOCK
    if (module, name) == _IDLE or (native is not None and is_in_lock(native)):
        return _In.LOCK
    return _In.ELSE


def _in_bare_loop(frame: FrameType) -> bool:
    """Whether the thread is in asyncio's loop, which has nothing but what wakes it to look at."""
    if frame.f_globals.get("__name__") != "selectors" or frame.f_code.co_name != "select":
        return False
    selector = frames.variables(frame).get("self")
    return isinstance(selector, selectors.BaseSelector) and len(selector.get_map() or ()) == 1


def _joins_who_asks(
    ident: int, found: Mapping[int, FrameType], stands: Mapping[int, _In], own: int
) -> bool:
    """Whether this thread joins, perhaps by others, one that waits for an answer."""
    seen: set[int] = set()
    left = [ident]
    while left:
        ident = left.pop()
        if ident == own or stands.get(ident) is _In.ASK:
            return True
        if ident not in seen and stands.get(ident) is _In.LOCK:
            seen.add(ident)
            left += [one.ident or 0 for one in _joined(found[ident])]
    return False


def _joined(frame: FrameType) -> list[threading.Thread]:
    """The threads for the ends of which the one with this frame waits; all of them must end."""
    if frame.f_code.co_name == "_shutdown":  # at the end of the program
        main = threading.main_thread()
        return [one for one in threading.enumerate() if one is not main and not one.daemon]
    joined = frames.variables(frame).get("self")
    return [joined] if isinstance(joined, threading.Thread) else []


def _all_wait(others: Mapping[int, _In], users: set[int]) -> bool:
    """Whether each waits for an answer, or for one that does. What a library's own thread does from
    time to time is for itself."""
    return all(
        stands in (_In.ASK, _In.LOCK) or (stands is _In.TIMED_LOCK and ident not in users)
        for ident, stands in others.items()
    )
