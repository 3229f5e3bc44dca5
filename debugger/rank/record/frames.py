"""Where the threads of this process stand.

Before Python 3.12, `sys._current_frames()` creates objects while it holds the lock of the
interpreter's list of threads, and that may start a garbage collection. One that frees a tensor (or
runs any finaliser that lets go of the GIL) lets another thread run, and if that one asks for the
frames too, or starts a thread, it waits for the lock with the GIL in its hand: the process stands
still for ever. So there is no garbage collection meanwhile.

Nor may there be one while another thread's frames are gone through: `f_back` creates an object for
a frame, and where a collection lets that thread run and return from it, the object is of a frame
that is no more, and the process crashes.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

# Called one after the other by C code, so that no other thread sees the collector off, and none can
# switch it on in between.
_WITHOUT_GARBAGE_COLLECTION: tuple[partial[Any], ...] = (
    partial(gc.disable),
    partial(sys._current_frames),
    partial(gc.enable),
)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """While other threads' frames are gone through. From Python 3.12 on a collection waits for the
    next instruction anyway, and is in no call's way."""
    if sys.version_info >= (3, 12) or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def of_all_threads() -> dict[int, FrameType]:
    """The innermost frame of each thread that runs Python code, by the thread's `ident`."""
    if sys.version_info >= (3, 12) or not gc.isenabled():
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
    return of_all_threads().get(ident or 0)
