"""A command on a terminal of its own: what it shows is awaited, and lines are typed into it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from distdebug.record.streams import readable

LIMIT_S = 200.0


class Terminal:
    """Ends with the `with` block, and the command with it."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        own: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Without `own` it is no terminal of the session: no signal comes from it. `size`: rows and
        columns."""
        master, slave = pty.openpty()
        self._master: int | None = master
        if size is not None:
            self.resize(*size)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**environment, "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=_take_terminal if own else None,
        )
        os.close(slave)
        self.shown = ""
        self._seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:  # it is the leader of its group, in which its own app is
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._master is not None:
            os.close(self._master)

    def expect(self, pattern: str, limit_s: float = LIMIT_S) -> str:
        """Wait until this is shown behind what was expected before; what came up to its end."""
        until = time.monotonic() + limit_s
        while True:
            found = re.compile(pattern).search(self.shown, self._seen)
            if found is not None:
                begin, self._seen = self._seen, found.end()
                return self.shown[begin : found.end()]
            if not self._read(until - time.monotonic()):
                raise AssertionError(f"{pattern!r} was never shown; but:\n{self.shown}")

    def type(self, line: str) -> None:
        """As if it were typed; ends with the key Enter."""
        self.press(line + "\n")

    def press(self, keys: str) -> None:
        """As `type`, without Enter: "\\x03" is Ctrl-C, "\\x04" Ctrl-D."""
        assert self._master is not None
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """As if its window were drawn larger or smaller."""
        assert self._master is not None
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def kill(self) -> None:
        """With SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def vanish(self) -> None:
        """As if its emulator were killed. The kernel sends SIGHUP where it is the session's own."""
        assert self._master is not None
        os.close(self._master)
        self._master = None

    def finish(self, limit_s: float = LIMIT_S) -> int:
        """Wait for its end; its exit code."""
        until = time.monotonic() + limit_s
        while self._read(until - time.monotonic()):
            pass
        return self.process.wait(timeout=max(1.0, until - time.monotonic()))

    def _read(self, limit_s: float) -> bool:
        if self._master is None or limit_s <= 0:
            return False
        if not readable([self._master], limit_s):
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # nobody has the terminal open any more
            return False
        self.shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)


def _take_terminal() -> None:
    """Make it the session's own, so that Ctrl-C reaches the command; whoever runs the tests in the
    background has it ignored."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
