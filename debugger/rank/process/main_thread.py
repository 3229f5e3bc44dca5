"""Brings the main thread back to Python, for what it alone can do: raise there, trace its lines."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from ...record.limits import POLL_EVERY_S
from ..record import call_site, frames

SIGNAL = signal.SIGRTMAX - 3
"""Used within the process only."""


class MainThread:
    """The main thread of this process."""

    def __init__(self) -> None:
        self._acts: list[Callable[[FrameType | None], None]] = []

    def observe(self) -> None:
        """Begin; must be called in the main thread, in others it has no effect."""
        with contextlib.suppress(ValueError, OSError):
            signal.signal(SIGNAL, self._act)

    def on_return(self, act: Callable[[FrameType | None], None]) -> None:
        """`act(frame)` is called in the main thread, with the frame that it was in; it may
        raise."""
        self._acts.append(act)

    def interrupt(self) -> None:
        """Now, out of whatever it sleeps or waits in."""
        main = threading.main_thread().ident
        if main is not None and signal.getsignal(SIGNAL) == self._act:  # else the process would end
            with contextlib.suppress(ProcessLookupError, RuntimeError):
                signal.pthread_kill(main, SIGNAL)

    def at_next_bytecode(self) -> None:
        """When it runs Python again by itself: no system call is interrupted."""
        _thread.interrupt_main(SIGNAL)  # type: ignore[arg-type]  # any number does

    def _act(self, _number: int, frame: FrameType | None) -> None:
        for act in self._acts:
            act(frame)


class MainThreadCall:
    """A function that is to run once in the main thread, between two of its bytecodes, where no
    thread makes a call.

    torch's tables of hooks have no lock. They may be changed where no thread of this process is in
    a call of a group: not by the thread that changes them, and not by any other. The main thread
    comes to its next bytecode only when its own calls into C++ are over; whether other threads are
    within torch is seen on their stacks, and then it is tried again a moment later. An autograd
    thread has no stack that Python knows; it is at work only while the thread that called
    `backward()` waits for it inside torch, and that one is seen.
    """

    def __init__(self, act: Callable[[], None], is_wanted: Callable[[], bool]) -> None:
        """`is_wanted` is asked before each try: once it says no, `act` does not run any more."""
        self._act = act
        self._is_wanted = is_wanted
        self._came = threading.Event()
        self._done = False
        self._off = False
        self.error: BaseException | None = None
        self.took_ms = 0.0
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._run)
        # The interpreter may call it whenever it likes: it is never freed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._callback))

    def wait(self) -> bool:
        """From another thread: have it run, and wait until it has; False where it is not wanted
        any more."""
        while self._is_wanted():
            self._came.clear()
            # -1: the interpreter has too many of them; later, then.
            if ctypes.pythonapi.Py_AddPendingCall(self._callback, None) == 0:
                while not self._came.wait(POLL_EVERY_S):
                    if not self._is_wanted():
                        self._off = True
                        return self._done
                if self._done:
                    return True
            time.sleep(POLL_EVERY_S)
        return False

    def _run(self, _: object) -> int:
        """Runs in the main thread. An error must not get out: the interpreter would raise it
        there."""
        began_s = time.perf_counter()
        try:
            if not (self._done or self._off) and not others_in_torch():
                self._done = True
                self._act()
        except BaseException as error:
            self.error = error
        self.took_ms += (time.perf_counter() - began_s) * 1000
        self._came.set()
        return 0


def others_in_torch() -> bool:
    """Whether another thread than this one stands in a function of torch's."""
    return any(
        call_site.is_torch(frame.f_code.co_filename) for frame in frames.of_other_threads().values()
    )
