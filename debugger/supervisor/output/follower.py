"""Shows what ranks print into log files of their own, as it grows: for runs without a drain."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import TextIO

from ...record.limits import POLL_EVERY_S
from .lines import Display, QuietLooks

READ_BYTES = 1 << 18
_LOG = re.compile(r"(0|[1-9]\d{0,8})\.(out|err)")


class OutputFollower:
    """Follows the logs of all ranks. Either call `poll` about 20 times a second, or `start` a
    thread, so that a terminal that does not take more output holds up nobody."""

    def __init__(self, logs: Path, stdout: TextIO, stderr: TextIO) -> None:
        self._logs = logs
        self._display = Display(stdout, stderr)
        self._offsets: dict[str, int] = {}
        self._listed_ns = -1
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._rounds = 0
        self._abandoned = False

    def poll(self) -> bool:
        """Prints what is new; False when there was nothing."""
        self._discover()
        busy = False
        for name in self._offsets:
            busy |= self._read(name)
        self._display.poll()
        return busy

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="distdebug-output", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float = 60.0, stalled_s: float = 2.0) -> None:
        """Prints everything that is left, unfinished lines too. Call it when the ranks are gone.

        Gives up after `timeout_s`, or when the terminal takes nothing for `stalled_s`; what was
        not shown is still in the files.
        """
        self._listed_ns = -1
        self._stopping.set()
        if self._thread is not None:
            deadline_s = time.monotonic() + timeout_s
            looks = QuietLooks(POLL_EVERY_S, stalled_s, self._rounds)
            while self._thread.is_alive():
                self._thread.join(POLL_EVERY_S)
                if looks.too_many(self._rounds) or time.monotonic() > deadline_s:
                    self._abandoned = True
                    return
        else:
            self._run()
        self._display.finish()

    def _run(self) -> None:
        """Follows until told to stop, and then until nothing is left."""
        while not self._abandoned:
            stopping = self._stopping.is_set()
            busy = self.poll()
            self._rounds += 1
            if stopping and not busy:
                return
            if not busy:
                self._stopping.wait(POLL_EVERY_S)

    def _read(self, name: str) -> bool:
        path, offset = self._logs / name, self._offsets[name]
        try:
            size = os.stat(path).st_size
            if size < offset:
                offset = 0  # somebody emptied it
            if size == offset:
                return False
            with open(path, "rb", buffering=0) as file:
                file.seek(offset)
                received = file.read(READ_BYTES)
        except OSError:
            return False
        self._offsets[name] = offset + len(received)
        rank, _, stream = name.partition(".")
        self._display.take(int(rank), stream, received)
        return bool(received)

    def _discover(self) -> None:
        """Finds new log files; lists the directory only when it has changed."""
        try:
            changed_ns = os.stat(self._logs).st_mtime_ns
            if changed_ns == self._listed_ns:
                return
            names = os.listdir(self._logs)
        except OSError:
            return
        # A change within the clock's grain of the listing would be missed: look again then.
        recent = time.time_ns() - changed_ns < 50_000_000
        self._listed_ns = -1 if recent else changed_ns
        found = [match for name in names if (match := _LOG.fullmatch(name))]
        for match in sorted(found, key=lambda one: (int(one[1]), one[2] != "out")):
            self._offsets.setdefault(match[0], 0)
