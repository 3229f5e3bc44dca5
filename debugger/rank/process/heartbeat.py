"""A thread of the rank that says: this process can still run Python, and where it stands.

It also notices what nothing reports: asynchronous calls that have ended, threads that wait in
torch's C++ code for a future, and threads with user code that could still act while the others
wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from os import getpid
from types import FrameType

from distcore.base.background_thread import BackgroundThread

from ...record.layout import SEEN_STILL
from ...system.proc import times_slept
from ..group import gpu_completion, outstanding
from ..limits import HEARTBEAT_S, LAST_BEAT_S
from ..log.own_faults import report_own_fault
from ..record import call_site, frames
from ..record.recorder import Recorder
from .asking import Asking
from .unwaited_work import UnwaitedWork

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
            self.thread.join(LAST_BEAT_S)

    def _run(self) -> None:
        also: Callable[[], None] | None = self._also
        while not self._stop.wait(HEARTBEAT_S):
            try:
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
        gpu_completion.poll()
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
        number = gpu_completion.oldest()
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
