"""Raises the supervisor's verdict in a rank that can still run Python, at the rank's own line.

The supervisor writes `verdict.json` into the run directory. The heartbeat sees it; a signal brings
the main thread out of sleeps and locks, waits for works look at it between slices, and futures
that somebody waits for are completed with the error.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import DistError

from . import outstanding, waiting

SIGNAL = signal.SIGRTMAX - 3
"""Used within the process only, to bring the main thread back to Python."""


_told = False
_silent = False


class FindingRaised(DistError):
    """The run's verdict. `kind` is a finding kind, the text is the finding."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


FindingRaised.__module__ = "distdebug"  # what a traceback calls it; the file has another name here


class VerdictWatch:
    """Looks for the verdict, and raises it in every thread that waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._error: tuple[str, str] | None = None
        self._told_main = False

    def install(self) -> None:
        """Begin; must be called in the main thread for its signal to be handled."""
        waiting.set_verdict_check(self.check)
        with contextlib.suppress(ValueError, OSError):
            signal.signal(SIGNAL, self._on_signal)

    def look(self) -> None:
        """Called with every heartbeat."""
        if self._error is not None or not self._path.exists():
            return
        try:
            verdict = json.loads(self._path.read_text())
            self._error = (str(verdict["kind"]), str(verdict["text"]))
        except (OSError, ValueError, KeyError):
            return
        outstanding.fail_all(self._raised())
        global _told
        _told = True
        main = threading.main_thread().ident
        if main is not None:
            with contextlib.suppress(ProcessLookupError, RuntimeError):
                signal.pthread_kill(main, SIGNAL)

    def check(self) -> None:
        """Raise the verdict if there is one. Called between the slices of a wait."""
        if self._error is not None:
            if threading.current_thread() is threading.main_thread():
                self._told_main = True
            raise self._raised()

    def _raised(self) -> FindingRaised:
        kind, text = self._error or ("", "")
        return FindingRaised(kind, text)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> Any:
        if self._error is not None and not self._told_main and not _silent:
            self._told_main = True
            raise self._raised()


def stand_down() -> None:
    """The program is ending by itself: a verdict raised now would only confuse its last words."""
    global _silent
    _silent = True


def verdict_was_raised() -> bool:
    """Whether this process was told of a verdict."""
    return _told
