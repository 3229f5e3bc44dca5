"""Starts the terminal app, which is a program of its own: on this terminal, or beside a run."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TextIO

from ..errors import UsageError
from ..hook.loading import command
from ..record.limits import POLL_EVERY_S
from .limits import GONE_WITHIN_S

_HANGUP = 128 + signal.SIGHUP
"""The app's exit code where its terminal has vanished."""
_MOST_BYTES = 1 << 16


def need_terminal() -> None:
    """Raises UsageError where the app cannot be shown, ModuleNotFoundError without textual."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "the terminal app needs a terminal; `distdebug report` and `distdebug logs` do not"
        )
    if importlib.util.find_spec("textual") is None:
        raise ModuleNotFoundError(name="textual")


def command_line(run: Path) -> list[str]:
    """The command that opens the app on a run directory. Raises UsageError where it cannot."""
    need_terminal()
    return command("tui.__main__", str(run))


class Beside:
    """The app on this terminal while a run goes on. What the run prints meanwhile is in its logs;
    from the moment that the app is left, the terminal is the run's again."""

    def __init__(self, wanted: bool) -> None:
        import tempfile  # not for `distdebug tui`, which is to start in a blink

        # Closed at the end of the `with`.
        self.aside: IO[bytes] | None = tempfile.TemporaryFile() if wanted else None  # noqa: SIM115
        """The output of the command itself: a launcher, whose words have no log."""
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[TextIO, TextIO] | None = None

    def start(self, run: Path) -> None:
        """Open the app. Raises UsageError where it cannot be shown."""
        self._process = subprocess.Popen(command_line(run))
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (_Behind(one, self) for one in self._streams)

    @property
    def open(self) -> bool:
        """Whether the app has the terminal."""
        return self._process is not None and self._process.poll() is None

    @property
    def hung_up(self) -> bool:
        """Whether the app has ended because its terminal has vanished, and maybe nobody told us."""
        return self._process is not None and self._process.poll() == _HANGUP

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait for the user to leave the app, or for that to come true."""
        while self.open and not until():
            time.sleep(POLL_EVERY_S)

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self.aside is not None:
            self.aside.close()

    def printed_aside(self) -> str:
        """The end of what went to `aside`; it may be anything."""
        if self.aside is None:
            return ""
        self.aside.seek(max(0, self.aside.seek(0, os.SEEK_END) - _MOST_BYTES))
        return self.aside.read().decode(errors="backslashreplace")

    def close(self) -> None:
        """Leave the app if the user has not, and give the streams back."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(GONE_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._streams is not None:
            sys.stdout, sys.stderr = self._streams
            self._streams = None


class _Behind:
    """A stream that shows nothing while the app is open."""

    def __init__(self, stream: TextIO, app: Beside) -> None:
        self._stream = stream
        self._app = app
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        return len(text) if self._app.open else self._stream.write(text)

    def flush(self) -> None:
        if not self._app.open:
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()
