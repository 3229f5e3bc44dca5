"""A thread of the rank that says: this process can still run Python, and where it stands.

It also notices what nothing reports: asynchronous calls that have ended, threads that wait in
torch's C++ code for a future, and threads with user code that could still act while the others
wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from os import getpid
from types import FrameType

from distcore.base.background_thread import BackgroundThread

from ...record.layout import SEEN_ASKING, SEEN_STILL
from ...system.proc import TICKS_PER_S, read_stat, tasks, times_slept
from ..group import outstanding
from ..group.outstanding import AskedHandle, UnwaitedWork
from ..limits import ASKING_CPU_S, HEARTBEAT_S
from ..log.rank_log import report_own_fault
from ..record import call_site, frames
from ..record.recorder import Recorder
from ..torch_private.training import asks_beside_captures

_STILL_BEATS = 20
"""The number of beats for which the main thread must stand still to count as waiting for a GPU."""
_MOST_JOINS = 4
_JOINING = frozenset({"join", "_wait_for_tstate_lock"})


class Heartbeat:
    """Runs `beat` ten times a second until `stop`; `also` runs with every beat."""

    def __init__(
        self, recorder: Recorder, unwaited: UnwaitedWork, also: Callable[[], None]
    ) -> None:
        self._recorder = recorder
        self._unwaited = unwaited
        self._also = also
        self._stop = threading.Event()
        self._switches: dict[int, int] = {}
        self._inferred: int | None = None
        self._still: tuple[object, ...] = ()
        self._still_beats = 0
        self._on_stream: int | None = None
        self._asking = Asking(recorder)
        self.thread = BackgroundThread(self._run, "distdebug-heartbeat")

    def start(self) -> None:
        self.beat()  # a rank that takes the GIL at once and keeps it has had one beat
        self.thread.start()

    def stop(self) -> None:
        """End the thread, and wait for that; the last beat is its last word.

        A thread that drops a call's Work while Python is being finalised is ended inside a C++
        destructor, and takes the process with it ("terminate called without an active exception").
        """
        self._stop.set()
        if self.thread.is_alive():
            self.thread.join(timeout_s=1.0)  # a beat may be under way

    def _run(self) -> None:
        also: Callable[[], None] | None = self._also
        beside_captures = False
        while not self._stop.wait(HEARTBEAT_S):
            try:
                beside_captures = beside_captures or asks_beside_captures()
                self.beat()
            except Exception as error:
                report_own_fault("the heartbeat", error)
                return
            if also is not None:
                try:
                    also()
                except Exception as error:
                    also = None
                    report_own_fault("looking into the run directory", error)

    def beat(self) -> None:
        """Looks at the process once."""
        writer = self._recorder.writer
        outstanding.poll()
        outstanding.poll_streams()
        self._unwaited.report()
        self._infer()
        self._infer_on_stream()
        self._asking.beat(not (self._inferred is None and self._on_stream is None))
        serial = writer.serial
        free = self._free_threads()
        frame = self._standing()
        location = self._site(frame) if frame is not None else 0
        writer.heartbeat(free, serial, location)

    def _site(self, frame: FrameType | None) -> int:
        """Returns the site of a frame of the main thread's, which may run meanwhile."""
        return self._recorder.site(frame, of_another=True)

    def _standing(self) -> FrameType | None:
        """Returns the frame of the main thread; where it waits for a thread in user code that is in
        no recorded wait, that thread's."""
        frame = frames.of_thread(threading.main_thread().ident)
        for _ in range(_MOST_JOINS):
            ident = frames.awaited(frame)
            if ident is None or self._recorder.writer.is_waiting(ident):
                break
            other = frames.of_thread(ident)
            if call_site.users(other) is None:
                break
            frame = other
        return frame

    def _free_threads(self) -> int:
        """Threads with user code on their stack that are in no recorded wait.

        A thread that joins another is not counted: it can only act after that one.
        """
        writer = self._recorder.writer
        free = 0
        for ident, frame in frames.of_other_threads().items():
            if writer.is_waiting(ident):
                continue
            if frame.f_code.co_name in _JOINING and frame.f_globals.get("__name__") == "threading":
                continue
            if call_site.users(frame) is not None:
                free += 1
        return free - (0 if self._inferred is None else 1)

    def _infer(self) -> None:
        """The main thread waits for a future in C++ if it has not run since the last beat."""
        ident = threading.main_thread().ident or 0
        native = getpid()  # `native_id` is the parent's in a forked process, before Python 3.13
        writer = self._recorder.writer
        number = outstanding.oldest_awaited()
        before = self._switches.get(native)
        now = times_slept(native) if number is not None else None
        self._switches = {native: now} if now is not None else {}
        frame = frames.of_thread(ident)
        idle = (
            now is not None
            and now == before
            and frame is not None
            and call_site.is_torch(frame.f_code.co_filename)
            and not writer.is_waiting(ident)
        )
        waits_for = number if idle else None
        if waits_for != self._inferred:
            site = self._site(frame)
            writer.infer(ident, native, 0 if waits_for is None else waits_for + 1, site)
            self._inferred = waits_for

    def _infer_on_stream(self) -> None:
        """The main thread waits for a GPU, perhaps: it has long stood at one instruction, and a
        call is under way on a stream. Where it does so (`.item()`, `synchronize()`) nothing
        reports.

        It still counts as free to act, for it may as well compute: this makes the call's absent
        rank a suspect when the time is up, and proves nothing.
        """
        ident = threading.main_thread().ident or 0
        number = outstanding.oldest()
        frame = frames.of_thread(ident) if number is not None else None
        still = (number, id(frame), frame.f_lasti) if frame is not None else ()
        self._still_beats = self._still_beats + 1 if still and still == self._still else 0
        self._still = still
        writer = self._recorder.writer
        stands = self._still_beats >= _STILL_BEATS and not writer.is_waiting(ident)
        waits_for = number if stands and self._inferred is None else None
        if waits_for != self._on_stream:
            call = 0 if waits_for is None else waits_for + 1
            if self._inferred is None:
                site = self._site(frame) if frame is not None else 0
                writer.infer(ident, getpid(), call, site, SEEN_STILL)
            self._on_stream = waits_for


BEATS = 20
"""The number of heartbeats that are looked at together."""
ONLY_ASKS = 1000
"""The number of questions in them from which on a program does nothing in between."""
_SLEEPS_IN = frozenset({"threading", "selectors"})
_ASKED_IN = f"{outstanding.__package__}.tracked_work"


@dataclass
class _Window:
    """The beats of one look at a call that is asked for, and what was so before them."""

    times: int
    cpu_s: float
    waits: bool = False
    beats: int = 0


class Asking:
    """Finds threads that wait by asking: `while not work.is_completed(): time.sleep(0.01)`, also
    in asyncio. `beat` runs with every beat of the heartbeat.

    Nothing reports such a wait, and a program may ask now and then while it does something else. So
    it is a guess, which makes the absent rank a suspect when the time is up, and proves nothing. It
    is made where, for two seconds, the process made no call, the thread stood in nothing but the
    code that asks (or in what that code sleeps in), and it either used hardly any CPU time or did
    nothing but ask. Of messages nothing is guessed: who asks for one may serve others until it
    comes, for hours.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._windows: dict[int, _Window] = {}
        self._calls = -1
        self._found: dict[int, tuple[int, AskedHandle]] = {}

    def beat(self, main_is_taken: bool) -> None:
        """`main_is_taken`: what the main thread waits for is known, or guessed, otherwise."""
        if not (outstanding.asked or self._found or self._windows):
            return
        writer = self._recorder.writer
        if self._calls != writer.calls:
            self._calls = writer.calls
            self._windows.clear()
        found: dict[int, tuple[int, AskedHandle]] = {}
        asked = sorted(outstanding.asked.items(), key=lambda item: item[0])
        self._windows = {number: self._window(number, one) for number, one in asked}
        for number, one in asked:
            if self._windows[number].waits and not writer.is_waiting(one.ident):
                found.setdefault(one.ident, (number, one))
        main = threading.main_thread().ident
        for ident, (number, one) in {**self._found, **found}.items():
            if ident == main and main_is_taken:
                found.pop(ident, None)
            elif ident not in found:
                writer.infer(ident, one.native_id, 0, 0)
            elif found[ident] != self._found.get(ident):
                writer.infer(ident, one.native_id, number + 1, one.site, SEEN_ASKING)
        self._found = found

    def _window(self, number: int, asked: AskedHandle) -> _Window:
        group, is_message = self._recorder.writer.group_of(number)
        window = self._windows.get(number)
        stands = group >= 0 and not is_message and _stands(asked)
        if window is None or not stands:
            return _Window(asked.times, _cpu_s(asked))
        window.beats += 1
        if window.beats < BEATS:
            return window
        cpu_s, times = _cpu_s(asked), asked.times - window.times
        waits = times >= ONLY_ASKS or (times > 0 and cpu_s - window.cpu_s <= ASKING_CPU_S)
        return _Window(asked.times, cpu_s, waits)


def _stands(asked: AskedHandle) -> bool:
    """Whether the thread is in the code that asks, or sleeps below it; one that runs an event loop
    may be in the loop."""
    frame: FrameType | None = frames.of_thread(asked.ident)
    while frame is not None and frame.f_code not in asked.codes:
        name = frame.f_globals.get("__name__", "")
        package = name.partition(".")[0]
        if package == "asyncio":
            return True
        if package not in _SLEEPS_IN and name != _ASKED_IN:
            return False
        frame = frames.caller(frame)
    return frame is not None


def _cpu_s(asked: AskedHandle) -> float:
    stat = read_stat(asked.native_id, tasks())
    return stat.cpu_ticks / TICKS_PER_S if stat is not None else 0.0
