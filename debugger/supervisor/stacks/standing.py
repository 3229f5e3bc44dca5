"""Reads from a look at a process that does not move what keeps it, and whether it may go on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ...record.safe_text import clean
from ...record.secret_words import is_secret, masked
from ...record.snapshot import CallSite, Standstill
from .sights import Sight, Thread, is_a_sleep
from .stack_tree import describe, is_own, users_frame, waits_for_lock
from .stacks import Frame, ThreadStack

SLEPT_SHARE = 0.9
"""A sleep that has lasted for this share of the quiet is the only one in it, and no loop's."""
_LAST = re.compile(r"/threading\.py:_shutdown$|/multiprocessing/util\.py:_exit_function$")
"""The functions that Python runs at the end of a program. In a child that was forked they stand
above functions of its parent, to which it does not come back."""
_PATH = re.compile(r"""["']((?:/|\./|\w+://)[^"'\s]+|[\w.-]+:\d{2,5})["']""")
_TAKES_ORDERS = re.compile(
    r"/(?:site|dist)-packages/(?:ipykernel|ipyparallel|zmq|ray|grpc|tornado|uvicorn|debugpy)/"
)
"""Packages whose loops wait for requests, and show no listening socket in the thread that does: a
kernel between two cells of a notebook is idle, and so is who waits for an editor to attach. (A
thread in ZeroMQ's C++ polls an event.)"""
MOST_AWAITED, MOST_OTHERS = 3, 3
_MOST_TEXT = 200


def standstill_of(
    sight: Sight, since_ns: int, quiet_s: float, location: CallSite | None = None
) -> Standstill:
    """Returns what keeps a process that has been quiet for that long, since `since_ns`. `location`:
    where the process itself has last said that it stands."""
    main = sight.main
    if main is None:
        return Standstill(since_ns)
    threads = [one.stack for one in sight.threads]
    kept = _keeper(threads, main.stack, location)
    thread = next(one for one in sight.threads if one.stack is kept)
    found = stood(threads, main.stack, since_ns, location)
    return replace(found, awaits=_awaited(thread), goes_on=_goes_on(sight, main, quiet_s))


def stood(
    threads: Sequence[ThreadStack],
    main: ThreadStack,
    since_ns: int = 0,
    location: CallSite | None = None,
) -> Standstill:
    """The same, as far as the stacks of a process show it."""
    kept = _keeper(threads, main, location)
    found = users_frame(_since_the_end(kept))
    site = None
    if found is not None:
        frame, through = found
        site = CallSite(frame.file, frame.line, frame.function, through)
    others = [_place(one) for one in threads if one is not kept and users_frame(one.python_frames)]
    return Standstill(
        since_ns,
        thread="" if kept is main else kept.name,
        site=site,
        call=_called(kept),
        leaving=_is_leaving(main),
        locked=waits_for_lock(kept),
        others=tuple(others[:MOST_OTHERS]),
    )


def _keeper(
    threads: Sequence[ThreadStack], main: ThreadStack, location: CallSite | None
) -> ThreadStack:
    """The thread for which the process stands: the main one, or where that has nothing of the
    program's on its stack any more, the one at `location`, or else the first that has."""
    if users_frame(_since_the_end(main)):
        return main
    others = [one for one in threads if one is not main and users_frame(one.python_frames)]
    there = (one for one in others if location is not None and _is_at(one, location))
    return next(there, next(iter(others), main))


def _since_the_end(main: ThreadStack) -> Sequence[Frame]:
    """The functions of Python that the main thread has called since the program's end; where it has
    not come to that, all."""
    frames = main.python_frames
    ends = (n for n, frame in enumerate(frames) if _LAST.search(f"{frame.file}:{frame.function}"))
    return frames[: next(ends, len(frames))]


def _is_at(thread: ThreadStack, site: CallSite) -> bool:
    found = users_frame(thread.python_frames)
    return found is not None and (found[0].file, found[0].line) == (site.file, site.line)


def _is_leaving(main: ThreadStack) -> bool:
    """Whether the program has come to its end, or its outermost function is an exit handler, and
    not a module."""
    frames = main.python_frames
    if not frames or len(_since_the_end(main)) < len(frames):
        return bool(frames)
    return not (frames[-1].function == "<module>" or frames[-1].file.startswith("<frozen"))


def _called(thread: ThreadStack) -> str:
    """Returns what the user's line has called, innermost; "" where it has called nothing of
    Python's."""
    called = (frame for frame in thread.python_frames if not is_own(frame))
    innermost, own = next(called, None), users_frame(thread.python_frames)
    return "" if innermost is None or (own and innermost is own[0]) else describe(innermost)


def _place(thread: ThreadStack) -> str:
    """`thread "Thread-1" in rpc_sync (torch/distributed/rpc/api.py:750), at serve (train.py:14)`"""
    found = users_frame(thread.python_frames)
    assert found is not None
    name = f'thread "{clean(thread.name, 60)}"' if thread.name else "a thread"
    called = _called(thread)
    return f"{name}{f' in {called},' if called else ''} at {describe(found[0])}"


def _awaited(thread: Thread) -> str:
    """Returns what the thread waits for, as the kernel tells; else the paths and addresses among
    the variables of its innermost functions, down to the user's."""
    if thread.asleep.awaits:
        return f"for {clean(thread.asleep.awaits, _MOST_TEXT)}"
    found = []
    own = users_frame(thread.stack.python_frames)
    for frame in thread.stack.python_frames:
        for name, value in frame.values:
            hidden = name.startswith("__") or is_secret(name)
            match = None if hidden else _PATH.fullmatch(value.strip())
            found += [match[1].partition("?")[0]] if match is not None else []
        if own is not None and frame is own[0]:
            break
    texts = [clean(one, _MOST_TEXT) for one in masked(dict.fromkeys(found))][:MOST_AWAITED]
    return f"with {', '.join(texts)} in hand" if texts else ""


def _goes_on(sight: Sight, main: Thread, quiet_s: float) -> str:
    """Tells why the process may go on by itself, in words behind `rank 0`; "" where nothing is
    seen."""
    python = [one for one in sight.threads if one.stack.python_frames]
    serves = next((one.serves for one in python if one.serves), "")
    if serves:
        return f"serves at {serves}"
    if any(one.asleep.input for one in python):
        return "waits for its input"
    taking = any(_TAKES_ORDERS.search(frame.file) for frame in main.stack.python_frames)
    if taking or main.asleep.polls_event:
        return "waits for requests"
    if sight.moves_data or any(one.receives for one in python):
        return "moves data"
    if is_a_sleep(main.still_s, main.wakes_in_s) and main.still_s >= SLEPT_SHARE * quiet_s:
        return "sleeps until a time of its own"
    return ""
