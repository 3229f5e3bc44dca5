"""The terminal app in a pseudo-terminal, for figures: what it draws is read and thrown away."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from distdebug.system.proc import TICKS_PER_S, read_stat

ROOT = Path(__file__).resolve().parents[2]
SIZE = (50, 160)
KEYS: tuple[tuple[bytes, tuple[bytes, ...]], ...] = (
    (b"c", (b"groups:",)),
    (b"s", (b"reading ...", b"stacks yet", b"taken ")),
    (b"o", ("rank↑".encode(),)),
    (b"w", (b"waits for", b"nobody waits", b"end by itself")),
)
"""A key, and words that come because of it alone: the screen also changes by itself."""


def environment() -> dict[str, str]:
    """What the measured commands run in: this tree, and a terminal with colours."""
    return {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}


class App:
    """`distdebug tui` on a run directory."""

    def __init__(self, path: Path) -> None:
        self.began_s = time.monotonic()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        distdebug = str(Path(sys.executable).with_name("distdebug"))
        self.process = subprocess.Popen(
            [distdebug, "tui", str(path)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(),
        )
        os.close(slave)
        self.master = master
        self.written_bytes = 0

    def _read(self, timeout_s: float) -> bytes:
        ready, _, _ = select.select([self.master], [], [], timeout_s)
        data = os.read(self.master, 1 << 16) if ready else b""
        self.written_bytes += len(data)
        return data

    def first_screen_s(self, limit_s: float = 60.0) -> float:
        """Seconds from the command to the first screen that has the run's figures on it."""
        self._until((b" calls",), limit_s)
        return time.monotonic() - self.began_s

    def _until(self, words: tuple[bytes, ...], limit_s: float) -> None:
        seen = b""
        deadline = time.monotonic() + limit_s
        while not any(word in seen for word in words):
            seen += self._read(0.05)
            assert time.monotonic() < deadline, (words, seen[-2000:])

    def rests(self, seconds: float) -> None:
        """Let it work for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def answers_s(self, rounds: int) -> list[float]:
        """Seconds from a key to what it shows, for all keys in turn, sorted."""
        found = []
        for _ in range(rounds):
            for key, words in KEYS:
                while self._read(0.02):
                    pass
                began_s = time.monotonic()
                os.write(self.master, key)
                self._until(words, 10.0)
                found.append(time.monotonic() - began_s)
        return sorted(found)

    @property
    def pid(self) -> int:
        """The app's own process: the command's child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def cpu_s(self) -> float:
        """What the app has taken so far."""
        stat = read_stat(self.pid)
        return stat.cpu_ticks / TICKS_PER_S if stat else 0.0

    def share(self, seconds: float) -> float:
        """Of one core, over so many seconds."""
        before_s, began_s = self.cpu_s(), time.monotonic()
        self.rests(seconds)
        return (self.cpu_s() - before_s) / (time.monotonic() - began_s)

    def memory(self) -> tuple[int, int]:
        """Bytes: resident in all, and of those not backed by files (the records are mapped)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        rows = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        values = [int(rows[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")]
        return values[0], values[1]

    def close(self) -> None:
        """Leave it by its key."""
        os.write(self.master, b"q")
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self._read(0.05)
            except OSError:
                break
        self.process.wait(5)
        os.close(self.master)
