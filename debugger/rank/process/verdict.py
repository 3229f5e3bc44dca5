"""Raises the supervisor's verdict in a rank that can still run Python, at the rank's own line.

The supervisor writes `verdict.json` into the run directory. The heartbeat sees it; a signal brings
the main thread out of sleeps and locks, waits for works look at it between slices, and gloo's
connections are shut down for threads that wait in its C++ code.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from ...errors.in_ranks import FindingRaised, error_of
from ...record.requests.supervision import Verdict, is_live
from ..record import call_site, frames
from ..record.waiting import NoVerdict
from ..torch_private.gloo import GlooSockets
from .main_thread import MainThread

VERDICT = "verdict.json"


class VerdictWatch(NoVerdict):
    """Looks for the verdict, and raises it in every thread that waits."""

    def __init__(self, directory: Path, main_thread: MainThread, sockets: GlooSockets) -> None:
        self._path = directory / VERDICT
        self._main_thread = main_thread
        self._sockets = sockets
        self._silent = False
        self.was_raised = False
        """Whether this process has read a verdict."""
        self._error: Verdict | None = None
        self._told_main = False
        main_thread.on_return(self._on_main_thread)

    def look(self) -> None:
        """Called with every heartbeat."""
        if self._error is not None:
            return
        try:
            # torchrun imports torch, and is no rank: its own words at the end are about its ranks.
            launcher = "torch.distributed.launcher.api"
            if not self._path.exists() or (launcher in sys.modules and "RANK" not in os.environ):
                return
            self._error = Verdict.of_json(json.loads(self._path.read_text()))
        except (OSError, ValueError):
            return
        if self._error is None:
            return
        self.was_raised = True
        main = threading.main_thread()
        frame = frames.of_thread(main.ident)
        waited = self._sockets.shut_down()
        if main.ident in (threading.get_ident(), None):
            return
        in_torch = frame is not None and call_site.is_torch(frame.f_code.co_filename)
        if waited and in_torch and _leaves(main.ident, frame, within_s=0.3):
            return  # the lost connection has freed it: a signal would hit its `finally` blocks
        self._main_thread.interrupt()

    def check(self) -> None:
        """Raise the verdict if there is one. Called between the slices of a wait."""
        if self._error is not None:
            if _in_main_thread():
                self._told_main = True
            raise self._raised()

    def instead(self, error: BaseException) -> BaseException:
        """The verdict, where a call failed because others had read it first; else the error."""
        if not isinstance(error, Exception):
            return error
        if isinstance(error, FindingRaised):
            if not error.own:
                return error
            self.await_report(limit_s=1.0)
        self.look()
        if self._error is None:
            return error
        if _in_main_thread():
            self._told_main = True
        return self._raised()

    def stand_down(self) -> None:
        """The program is ending by itself: a verdict raised now would only confuse its last
        words."""
        self._silent = True

    def await_report(self, limit_s: float) -> None:
        """Wait for the verdict, whose words are those of all ranks, in this host's run at least."""
        if not is_live(self._path.parent):
            return  # there is no supervisor
        until = time.monotonic() + limit_s
        while not os.path.exists(self._path) and time.monotonic() < until:
            time.sleep(0.01)

    def _raised(self) -> FindingRaised:
        found = self._error or Verdict("", "")
        return error_of(found.kind, found.text, found.cause)

    def _on_main_thread(self, _frame: FrameType | None) -> None:
        if self._error is not None and not self._told_main and not self._silent:
            self._told_main = True
            raise self._raised()


def _in_main_thread() -> bool:
    """To ask `current_thread()` would show a thread to the program that is none of its own."""
    return threading.get_ident() == threading.main_thread().ident


def _leaves(thread: int, frame: FrameType | None, within_s: float) -> bool:
    """Whether the thread comes out of this frame soon."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = frames.of_thread(thread)
        while found is not None and found is not frame:
            found = frames.caller(found)
        if found is None:
            return True
        time.sleep(0.01)
    return False
