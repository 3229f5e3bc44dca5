"""The frames of this process's threads.

Before Python 3.12, `sys._current_frames()` creates objects while it holds the lock of the
interpreter's list of threads, and that may start a garbage collection. One that frees a tensor (or
runs any finaliser that lets go of the GIL) lets another thread run, and if that one asks for the
frames too, or starts a thread, it waits for the lock with the GIL in its hand: the process stands
still for ever. So there is no garbage collection meanwhile.

Nor may there be one in the middle of `f_back` or `f_locals` of another thread's frame: these create
an object for the frame above, or for the variables, and where a collection lets the thread run and
return from it meanwhile, the object is of a frame that is no more, and the process crashes
(`caller`, `awaited`).

From Python 3.12 on a collection waits for the next instruction of its thread, and is in no call's
way.
"""

from __future__ import annotations

import gc
import operator
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any

_COLLECTS_LATER = sys.version_info >= (3, 12)
# Called one after the other by C code, so that no other thread sees the collector off, and none can
# switch it on, or off for itself, in between.
_WITHOUT_GARBAGE_COLLECTION: tuple[partial[Any], ...] = (
    partial(gc.disable),
    partial(sys._current_frames),
    partial(gc.enable),
)
_f_back = operator.attrgetter("f_back")
_POOL = "concurrent.futures.thread"
_f_locals = operator.attrgetter("f_locals")


def of_other_threads() -> dict[int, FrameType]:
    """The innermost frame of each other thread that runs Python code, by the thread's `ident`.

    This thread's own must not be among them: it outlives the function that it is of, with the
    variable in it that holds all of them, and whatever stands in any of these frames, a model or
    the tensors of a step, would be kept until the next garbage collection.
    """
    found = _of_all_threads()
    found.pop(threading.get_ident(), None)
    return found


def _of_all_threads() -> dict[int, FrameType]:
    if _COLLECTS_LATER or not gc.isenabled():
        return sys._current_frames()
    try:
        _, found, _ = map(partial.__call__, _WITHOUT_GARBAGE_COLLECTION)
    except BaseException:  # an audit hook's, or there is no memory
        gc.enable()
        raise
    frames: dict[int, FrameType] = found
    return frames


def of_thread(ident: int | None) -> FrameType | None:
    """The innermost frame of this thread; None where it runs no Python code."""
    if ident == threading.get_ident():
        return sys._getframe(1)
    return of_other_threads().get(ident or 0)


def caller(frame: FrameType) -> FrameType | None:
    """The frame that called this one, which may be another thread's: its `f_back`."""
    found: FrameType | None = _asked(frame, _f_back)
    return found


def variables(frame: FrameType) -> Mapping[str, Any]:
    """The local variables of this frame, which may be another thread's: its `f_locals`."""
    found: Mapping[str, Any] = _asked(frame, _f_locals)
    return found


def awaited(frame: FrameType | None) -> int | None:
    """The `ident` of the thread that another one, which stands in this frame, waits for: it joins
    it, asks for the result of what a pool's thread executes, or runs the event loop, while one
    thread of a pool is at work; at the end of the program, the first that is no daemon. None where
    it waits for none, or nobody can tell for which."""
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module == "threading" and name == "_shutdown":
            main = threading.main_thread()
            others = (one for one in threading.enumerate() if one is not main and not one.daemon)
            return next((one.ident for one in others), None)
        if module == "threading" and name == "join":
            return getattr(variables(frame).get("self"), "ident", None)
        if module == "concurrent.futures._base" and name in ("result", "exception"):
            return _at_work(variables(frame).get("self"))
        if module.startswith("asyncio."):
            return _at_work(None)
        if module not in ("threading", "selectors", "concurrent.futures._base"):
            return None
        frame = caller(frame)
    return None


def _at_work(future: object) -> int | None:
    """The thread of a pool that works for this future (None: for any); None where it is not one."""
    found = []
    for ident, innermost in of_other_threads().items():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == _POOL:
                item = variables(frame).get("self")
                if future is None or getattr(item, "future", None) is future:
                    found.append(ident)
                break
            frame = caller(frame)
    return found[0] if len(found) == 1 else None


def _asked(frame: FrameType, what: Callable[[FrameType], Any]) -> Any:
    if _COLLECTS_LATER or not gc.isenabled():
        return what(frame)
    off, _, on = _WITHOUT_GARBAGE_COLLECTION
    try:
        _, found, _ = map(partial.__call__, (off, partial(what, frame), on))
    except BaseException:  # there is no memory
        gc.enable()
        raise
    return found
