"""Looks after the calls that are on their streams: which are over, which are late, what failed.

`StreamWatch` decides, one look at a time, without a clock or a thread of its own; `Watchdog` is the
thread that lets it look. What a look costs is one question to CUDA for each stream, and one to NCCL
for each communicator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from threading import Event as Flag
from threading import Lock
from typing import Any

from ..base.background_thread import BackgroundThread
from ..base.deadline import extended
from ..errors import DeadlineExceeded, GroupFailed
from ..limits import ASK_EVERY_S, REST_PAUSE_S, WATCHDOG_BEGINS_S
from .communicators import Comm
from .device import Device
from .gpu_clock import GpuClock
from .lane import StreamLane
from .work import StreamWork


class StreamWatch:
    """The watch of one group. `fail(error)` ends it; `peers()` gives what another rank says went
    wrong.

    The calls of one lane end in their order, so only the first of each is asked.
    """

    def __init__(
        self,
        members: Callable[[], Iterable[Comm]],
        fail: Callable[[BaseException], None],
        peers: Callable[[], BaseException | None],
        describe: str,
    ) -> None:
        self._members = members
        self._fail = fail
        self._peers = peers
        self._describe = describe
        self._lock = Lock()
        self._pending: dict[Any, deque[StreamWork]] = {}
        self._clocks: dict[Any, GpuClock] = {}
        self._asked_s = 0.0

    def __repr__(self) -> str:
        return f"<Watch of {self._describe}: {self.pending} calls on their streams>"

    @property
    def pending(self) -> int:
        return self.pending_on(None)

    def pending_on(self, lane: Any) -> int:
        """Calls on this lane; on all of them for None."""
        with self._lock:
            lanes = self._pending.values() if lane is None else [self._pending.get(lane, ())]
            return sum(len(one) for one in lanes)

    def add(self, lane: Any, work: StreamWork, clock: GpuClock) -> None:
        """A call was made on this lane; it is launched now, or will be."""
        with self._lock:
            self._pending.setdefault(lane, deque()).append(work)
            self._clocks[lane] = clock

    def release(self) -> None:
        """All calls are over: their streams are free for other groups."""
        with self._lock:
            lanes, clocks = list(self._pending), set(self._clocks.values())
            self._pending.clear()
        for lane in (*lanes, *clocks):
            if isinstance(lane, StreamLane | GpuClock):
                lane.release()

    def look(self, now_s: float) -> None:
        """Finish what is over; fail the group for what is late or wrong."""
        try:
            self._finish_those_over()
            self._fail_for_the_late(now_s)
            for member in self._members():
                error = member.error()
                if error is not None:
                    self._fail(error)
                    return
            if now_s - self._asked_s >= ASK_EVERY_S:
                self._asked_s = now_s
                said = self._peers()
                if said is not None:
                    self._fail(said)
        except Exception as error:  # CUDA's own: after it no stream of this process goes on
            failed = GroupFailed(
                f"{self._describe}: the GPU cannot be asked any more "
                f"({type(error).__name__}: {error})"
            )
            failed.__cause__ = error
            self._fail(failed)

    def _lanes(self) -> list[tuple[deque[StreamWork], GpuClock]]:
        with self._lock:
            return [(works, self._clocks[lane]) for lane, works in self._pending.items()]

    def _finish_those_over(self) -> None:
        for works, clock in self._lanes():
            clock.tick()
            if not clock.known:
                continue  # at the first look; the next one can tell when they ran
            while works and works[0].reached():
                work = works[0]
                work.finish(None, clock.span_ns(work.started, work.ended))
                works.popleft()

    def _fail_for_the_late(self, now_s: float) -> None:
        for works, _clock in self._lanes():
            work = works[0] if works else None
            if work is None or now_s < work.deadline:
                continue
            if now_s < extended(work.deadline):
                continue
            limit_s = work.deadline.limit_s
            self._fail(
                DeadlineExceeded(
                    f"{work.text} of {self._describe} is not complete after {limit_s:g} s: its "
                    f"communicator was aborted; a rank that has not made this call, or cannot "
                    f"reach the others, holds it up"
                )
            )
            return

    def give_up(self, error: BaseException, aborted: bool = False) -> None:
        """All calls that are not over end with this error. To be called before the communicators
        are aborted: an abort brings their streams to the ends of calls that did nothing. `aborted`:
        it is too late for that, and no call that is left can be trusted."""
        with self._lock:
            works = [work for lane in self._pending.values() for work in lane]
            self._pending.clear()
        for work in works:
            try:
                over = not aborted and work.reached()
            except Exception:
                over = False
            work.finish(None if over else error)


class Watchdog:
    """The thread that lets `StreamWatch` look."""

    def __init__(
        self,
        look: Callable[[float], None],
        device: Device,
        now: Callable[[], float],
        name: str,
    ) -> None:
        self._look = look
        self._device = device
        self._now = now
        self.capture_safe = False
        """Whether a graph may be captured while this thread looks."""
        self._name = name
        self._stop = Flag()
        self._began = Flag()
        self._thread: BackgroundThread | None = None

    def start(self, index: int) -> None:
        """Once there is something to look at, on this device; again it changes nothing."""
        if self._thread is None and not self._stop.is_set():
            self._thread = BackgroundThread(self._run, self._name, (index,))
            self._thread.start()
            self._began.wait(WATCHDOG_BEGINS_S)

    def _run(self, index: int) -> None:
        # A thread that asks CUDA anything makes a context on its device: not on the first one,
        # which belongs to another rank.
        with self._device.entered(index):
            self.capture_safe = self._device.watches()
            self._began.set()
            while not self._stop.wait(REST_PAUSE_S):
                self._look(self._now())

    def stop(self, limit_s: float = 0.0) -> None:
        """End it after the look that it is in, and wait for that."""
        self._stop.set()
        if self._thread is not None and not self._thread.is_here():
            self._thread.join(limit_s)
