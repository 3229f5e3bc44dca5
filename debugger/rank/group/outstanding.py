"""The calls of this process that nobody has seen finish yet.

The one table of them that a process has: it is used in every call, where a way to an object that
would be handed in costs more than the table itself. A test of one part of it begins with `forget`.

A wait for a call on CUDA tensors makes a stream wait, and returns at once: the call is over when
its stream has come to its end, which the heartbeat asks for. When it began and ended is taken from
the events of the backend where it tells.

The heartbeat looks at them, so that the record tells of their completion although the program
never waits, or waits where this layer cannot see it (a future inside DDP's C++ reducer).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from time import monotonic_ns
from types import CodeType
from typing import Any

import torch
from torch.distributed import Work

from ...record.notes import UnwaitedWorkNote
from ...record.ops import OP_NAMES, POINT_TO_POINT
from ...record.writing.slots import GroupSlot
from ..record import call_site
from ..record.recorder import Recorder
from ..torch_private.training import capturing


class StreamEnd:
    """In the place of a work, where a backend makes a call on a GPU and hands out none: torch's
    NCCL does so where the program waits for the call itself. It runs on the current stream then,
    and is over when that has come to what is recorded behind it."""

    def __init__(self, inner: Any, device: torch.device) -> None:
        self._backend = inner._get_backend(device)
        self._event = torch.Event(device)
        self._event.record(torch.accelerator.current_stream(device))

    def is_completed(self) -> bool:
        """Whether the stream has come to it. Raises RuntimeError where the GPU has failed."""
        return self._event.query()

    def exception(self) -> BaseException | None:
        """Returns the group's error, once the call is complete: NCCL ends the calls of a group that
        has failed. Other backends do not tell."""
        error = self._backend.get_error() if hasattr(self._backend, "get_error") else None
        if error is None or error.name == "SUCCESS":
            return None
        return RuntimeError(f"the group failed: {error.name}")


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


class Handle(weakref.ref[Any]):
    """A call's handle, as long as the program has it: its `poll` puts on record that the call is
    complete, if it is. The call's number, the backend's work."""

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
awaited: dict[int, Any] = {}
"""The calls whose future was handed out: somebody may be waiting without our knowledge, and may
have dropped the handle (DDP does), so it is kept here until the call is done."""
kept: dict[int, Any] = {}
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
_gathering: list[list[Followed]] = []
"""For each group that gathers calls, those that its backend has handed out no work for."""


def watch(tracked: Any, number: int, work: Any) -> None:
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


def gather() -> None:
    """Calls that are made now are coalesced: their own handles are none."""
    _gathering.append([])


def gathered(end: Callable[[], Any], inner: Any, given: tuple[Any, ...]) -> Any:
    """Returns the work of the coalesced calls, which `end` makes on the device that is given."""
    calls = _gathering.pop() if _gathering else []
    work = end()
    for call in calls:
        call.work = work
        if not is_followed(call, inner, given):
            call.recorder.writer.finish(call.number, None)
    return work


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


def goes_on(work: Any) -> bool:
    """Whether the call is still under way though its wait has returned. In the capture of a CUDA
    graph nobody can tell."""
    if capturing():
        return False
    try:
        return not work.is_completed()
    except Exception:
        return False  # the call's own failure, which the program gets to see elsewhere


def stream_end(inner: Any, given: tuple[Any, ...]) -> StreamEnd | None:
    """Returns what tells when a call is over that this group's backend has made of these arguments,
    tensors or a device, on the current stream; None where nothing can."""
    from ..record.describe import tensors_in  # which comes with the first group

    if capturing():
        return None
    try:
        device = next((one.device for one in tensors_in(given)), given[0])
        return StreamEnd(inner, device)
    except Exception:  # no such device: the call is simulated
        return None


def is_followed(call: Followed, inner: Any, given: tuple[Any, ...]) -> bool:
    """Whether a call on a GPU, of these arguments, is still under way though nobody need wait for
    it any more; then its end is recorded when its stream has come to it."""
    if call.work is None:
        if _gathering:
            _gathering[-1].append(call)
            return True
        call.work = stream_end(inner, given)
    if call.work is None or not goes_on(call.work):
        return False
    follow(call)
    return True


def follow(call: Followed) -> None:
    """Record the end of this call when its stream has come to it."""
    key = call.group if call.group is not None else call.number
    followed.setdefault(key, deque()).append(call)


def failure_of(work: Any, streams: bool = False) -> BaseException | None:
    """Returns the error of the work, if it failed. `streams`: it is that of a call on a GPU.

    Asked of the work's futures: torch's own `Work.exception` and `is_success` print a warning that
    they are deprecated. NCCL's future is done as soon as the call is queued, whatever comes of it;
    what has come is in another one, as a number, 0 for success. gloo's sends and receives have no
    future; they become complete only in `wait()`, whose caller sees the error.
    """
    if type(work).exception is not Work.exception:
        failure: BaseException | None = work.exception()
        return failure
    try:
        result = work.get_future_result() if streams else None  # other backends would raise
        if result is not None and result.done() and result.value():
            return RuntimeError(f"the call failed on its GPU (torch's WorkResult {result.value()})")
    except Exception:  # nor has every backend of GPUs that
        pass
    try:
        future = work.get_future()
        if not future.done():
            return None
    except Exception:
        return None
    try:
        future.value()
    except Exception as error:
        return error
    return None


def times_ns(work: Any) -> tuple[int, int]:
    """When a call that is over began and ended, by time.monotonic_ns(); 0 where nobody knows.

    distcore's works know both. torch's know how long it took, if it was told to take the time; the
    end is then when it was noticed.
    """
    known = getattr(work, "times_ns", None)
    if known is not None:
        span = known()
        return span if span is not None else (0, 0)
    try:
        duration_ns = round(float(work._get_duration()) * 1e6)
    except Exception:  # not timed, or a backend that does not
        return 0, 0
    now_ns = monotonic_ns()
    return now_ns - duration_ns, now_ns


def poll_streams() -> None:
    """Record the ends of calls whose streams have come to them."""
    for key, calls in list(followed.items()):
        while calls and _is_over(calls[0]):
            calls.popleft()
        if not calls:
            followed.pop(key, None)


def _is_over(call: Followed) -> bool:
    writer = call.recorder.writer
    try:
        if not call.work.is_completed():
            return False
        failed = failure_of(call.work, streams=True) is not None
    except Exception:  # the GPU cannot be asked any more
        failed = True
    if failed:
        broken.append(call.number)
        writer.break_off(call.number, None)
        return True
    started_ns, ended_ns = times_ns(call.work)
    if not started_ns and hasattr(call.work, "times_ns") and not call.asked_again:
        call.asked_again = True  # it ended just now, and its own watchdog has not seen it yet
        return False
    writer.finish(call.number, None, started_ns, ended_ns)
    return True


def unfinished() -> tuple[int, ...]:
    """The calls that are followed, and those that have failed meanwhile, in their order; of many
    the first ones of each group."""
    going_on = [
        call.number for calls in list(followed.values()) for call in islice(calls, MOST_UNFINISHED)
    ]
    return tuple(sorted({*broken, *going_on}))[:MOST_UNFINISHED]


def oldest() -> int | None:
    """The first call under way on a GPU which the program has waited for, or whose future was
    handed out."""
    going_on = [calls[0].number for calls in list(followed.values()) if calls]
    futures = (number for number, work in list(awaited.items()) if work._known.streams)
    return min([*going_on, *futures], default=None)


Key = tuple[int, int, bool]
"""Op, line, and whether the handles were kept to the end."""


class UnwaitedWork:
    """The handles that the program dropped, or kept to its end, while their calls were not
    complete. A send or a receive cannot tell before wait() whether it is complete: of those only
    dropped handles count.

    Nobody can tell when the result of such a call may be used, and nobody hears of its failure.
    Each line is put on record once, and again with the count of its handles when the program ends.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: dict[tuple[Key, int], tuple[int, int]] = {}
        """Dropped handles of calls that a barrier may yet complete, by line and group: how many,
        and the number of the last one. The barrier of gloo, tcp and mpi waits for all calls before
        it, and a function that drops handles and comes to a barrier relies on that; what another
        one has done meanwhile, nobody knows."""
        self._counts: dict[Key, int] = {}
        self._noted: dict[Key, int] = {}
        self._lock = threading.RLock()
        """The heartbeat's thread looks, and so does the one that destroys a group."""

    def report(self, over: bool = False) -> None:
        """Put the lines on record that were not known before. `over`: no barrier is to come."""
        with self._lock:
            while unwaited:
                number = unwaited.popleft()
                group, message = self._recorder.writer.group_of(number)
                if message or group not in barriers:
                    self._count(number, kept=False)
                else:
                    self._hold(number, group)
            if over:
                for (key, group), (count, last) in self._held.items():
                    if last > self._barrier_of(key[1], group):
                        self._counts[key] = self._counts.get(key, 0) + count
                self._held.clear()
            for key in self._counts.keys() - self._noted.keys():
                self._note(key)

    def last_report(self, ended_well: bool) -> None:
        """The program has ended: what is still under way was never waited for. Not so where it has
        failed, for then nobody came to wait."""
        if ended_well:
            self.report(over=True)
            for number in pending():
                self._count(number, kept=True)
            for key, count in self._counts.items():
                if self._noted.get(key) != count:
                    self._note(key)
        forget()  # no handle may be dropped while the interpreter is finalised

    def _count(self, number: int, kept: bool) -> None:
        call = self._recorder.writer.call_at(number)
        if call is not None and not (kept and OP_NAMES[call[0]] in POINT_TO_POINT):
            key = (*call, kept)
            self._counts[key] = self._counts.get(key, 0) + 1

    def _hold(self, number: int, group: int) -> None:
        call = self._recorder.writer.call_at(number)
        if call is None:
            return
        barrier = self._barrier_of(call[1], group)
        if number < barrier:
            return
        key = ((*call, False), group)
        count, last = self._held.get(key, (0, -1))
        self._held[key] = (count + 1 if last > barrier else 1, number)

    def _barrier_of(self, site: int, group: int) -> int:
        """The last barrier that the function of this line has come to; -1 for none."""
        return barriers.get(group, {}).get(self._recorder.function_of(site), -1)

    def _note(self, key: Key) -> None:
        op_code, site, kept = key
        count = self._noted[key] = self._counts[key]
        op = OP_NAMES[op_code]
        self._recorder.note(UnwaitedWorkNote(op, count, kept), f"{op} was not waited for", site)
