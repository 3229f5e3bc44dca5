"""The terminal that the app is drawn on, which may vanish without a word: then the app ends.

Whoever holds the other end of a terminal may be killed, and the SIGHUP that should follow reaches
only the session whose own terminal it is, and nobody who ignores it. Textual's driver does not
notice: it reads an end of file again and again, which takes a whole core, and a drawing that waits
for its writer's thread, which has died of an error, waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import signal
from typing import Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

from .limits import EVERY_S

HANGUP = 128 + signal.SIGHUP
"""The exit code of an app whose terminal has vanished: a shell's for a SIGHUP."""
_STANDARD_STREAMS = (0, 1, 2)


def vanished(descriptor: int) -> bool:
    """Whether this is a terminal, pipe or socket whose other end is closed."""
    watch = select.poll()
    watch.register(descriptor, 0)
    return any(event & (select.POLLHUP | select.POLLNVAL) for _, event in watch.poll(0))


class LastingDriver(LinuxDriver):
    """Textual's driver; where its terminal has vanished, the app ends with the code `HANGUP`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if isinstance(self._file, io.TextIOWrapper):
            # What the locale lacks must not take more than its cell, as an escape would.
            self._file.reconfigure(errors="replace")
        self._file = cast(Any, _Drawn(cast(TextIO, self._file)))
        self._next_look: asyncio.TimerHandle | None = None

    def start_application_mode(self) -> None:
        """Called at the start, and whenever the app comes back to the terminal."""
        super().start_application_mode()  # type: ignore[no-untyped-call]  # Textual's
        self._look()

    def stop_application_mode(self) -> None:
        """Called at the end, and whenever the app lends the terminal."""
        if self._next_look is not None:
            self._next_look.cancel()
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        """Reads keys until the driver ends or there are none to come."""
        try:
            super().run_input_thread()
        except OSError:  # EIO: the other end is closed, or this is no longer the session's terminal
            self._app.call_later(self._leave)

    def _look(self) -> None:
        # Not a thread that waits: what wakes it up at a hangup differs from kernel to kernel.
        if vanished(self.fileno):
            self._leave()
        else:
            loop = asyncio.get_running_loop()
            self._next_look = loop.call_later(EVERY_S, self._look)

    def _leave(self) -> None:
        """Whatever is still said on the way out goes nowhere, also at the interpreter's own end."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in _STANDARD_STREAMS:
            if vanished(descriptor):
                os.dup2(nowhere, descriptor)
        os.close(nowhere)
        self._app.exit(return_code=HANGUP)


class _Drawn:
    """The file for what is drawn; what the terminal does not take is lost, and its writer's thread
    lives on."""

    def __init__(self, file: TextIO) -> None:
        self._to = file

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._to.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._to.flush()

    def fileno(self) -> int:
        return self._to.fileno()
