"""What the terminal app costs: time to the first screen, CPU and memory, time of a refresh.

python tests/benchmarks/tui_scale.py [ranks ...]     (default: 8 1024 16384)

The ranks are made up (fixtures/make_run.py); a process of its own touches their records four times
a second, as their calls would. The app runs in a terminal of its own. Bars: first screen 0.7 s;
5 % of a core at 8 ranks, 25 % and 300 MB at 1,024; a refresh below 1 s at 16,384.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from debugger.record import layout
from debugger.record.process_stat import TICKS_PER_S, read_stat
from fixtures.make_run import make
from tui.feed import Feed
from tui.picture import Focus
from tui.screens.base import Chosen
from tui.screens.overview import Overview

ROOT = Path(__file__).resolve().parents[2]
MEASURED_S = 10.0
MOVES_EVERY_S = 0.25
SIZE = (50, 160)


class App:
    """The app in a pseudo-terminal, whose output is read and thrown away."""

    def __init__(self, path: Path) -> None:
        self.began_s = time.monotonic()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        distdebug = str(Path(sys.executable).with_name("distdebug"))
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [distdebug, "tui", str(path)], stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self.master = master
        self.written_bytes = 0

    def read(self, timeout_s: float) -> bytes:
        ready, _, _ = select.select([self.master], [], [], timeout_s)
        data = os.read(self.master, 1 << 16) if ready else b""
        self.written_bytes += len(data)
        return data

    def until(self, word: bytes, limit_s: float) -> float:
        """Seconds from the start until the terminal got this."""
        seen = b""
        while word not in seen:
            seen += self.read(0.05)
            assert time.monotonic() - self.began_s < limit_s, seen[-2000:]
        return time.monotonic() - self.began_s

    def rests(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.read(left)

    def answers_in_s(self, key: bytes) -> float:
        """Seconds from a key until something is drawn."""
        while self.read(0.06):
            pass
        began_s = time.monotonic()
        os.write(self.master, key)
        while not self.read(1.0):
            pass
        return time.monotonic() - began_s

    @property
    def pid(self) -> int:
        """The app's own process: the command's child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def cpu_s(self) -> float:
        stat = read_stat(self.pid)
        return stat.cpu_ticks / TICKS_PER_S if stat else 0.0

    def memory(self) -> tuple[int, int]:
        """Bytes: resident in all, and of those not backed by files (the records are mapped)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        rows = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        values = [int(rows[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")]
        return values[0], values[1]

    def close(self) -> None:
        os.write(self.master, b"q")
        deadline = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.read(0.05)
            except OSError:
                break
        self.process.wait(5)
        os.close(self.master)


def move(path: Path) -> None:
    """Touch all records until the parent ends, as ranks do with every call. The heartbeats keep
    the run alive."""
    maps = []
    for file in (path / "ranks").iterdir():
        with open(file, "r+b") as opened:
            maps.append(mmap.mmap(opened.fileno(), layout.FILE_BYTES))
    word = layout.U64
    parent = os.getppid()
    offset_ns = time.time_ns() - struct.unpack_from("<q", maps[0], 48)[0]
    while os.getppid() == parent:
        for mapped in maps:
            serial = word.unpack_from(mapped, layout.SERIAL_AT)[0]
            word.pack_into(mapped, layout.SERIAL_AT, serial + 1)
            word.pack_into(mapped, layout.DYNAMIC_OFFSET, offset_ns)
        offset_ns += int(MOVES_EVERY_S * 1e9)
        time.sleep(MOVES_EVERY_S)


def measure(ranks: int, path: Path) -> None:
    """Print the figures for that many ranks."""
    directory = make(path, "healthy", ranks, hold=True)
    mover = subprocess.Popen([sys.executable, __file__, "--move", str(path)])
    try:
        app = App(path)
        first_s = app.until(b" calls", 60.0)
        first_cpu_s = app.cpu_s()
        app.rests(3.0)
        before_s, began_s, before = app.cpu_s(), time.monotonic(), app.written_bytes
        app.rests(MEASURED_S)
        lasted_s = time.monotonic() - began_s
        share = (app.cpu_s() - before_s) / lasted_s
        written = (app.written_bytes - before) / lasted_s
        total, anonymous = app.memory()
        keys_s = [app.answers_in_s(key) for key in (b"w", b"c", b"o", b"j", b"k") * 4]
        app.close()
    finally:
        mover.kill()
        mover.wait()
    looks_s = refreshes(path)
    directory.close()
    print(
        f"{ranks:>6} ranks: first screen {first_s:.2f} s ({first_cpu_s:.2f} s of CPU), "
        f"{share:.1%} of a core, "
        f"{total / 2**20:.0f} MB ({anonymous / 2**20:.0f} MB own), "
        f"a key {statistics.median(keys_s) * 1e3:.0f} ms (worst {max(keys_s) * 1e3:.0f}), "
        f"a refresh {statistics.median(looks_s) * 1e3:.0f} ms, {written / 1024:.1f} kB/s drawn",
        flush=True,
    )


def refreshes(path: Path) -> list[float]:
    """Seconds for reading and drawing, several times."""
    feed, view = Feed(path, print), Overview(Chosen())
    found = []
    for _ in range(6):
        began_s = time.monotonic()
        view.body(feed.look(Focus()), 160, 50)
        found.append(time.monotonic() - began_s)
    return found[1:]


def main() -> None:
    """Measure, or move the ranks of a measurement."""
    if sys.argv[1:2] == ["--move"]:
        move(Path(sys.argv[2]))
        return
    for ranks in [int(word) for word in sys.argv[1:]] or [8, 1024, 16384]:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=memory) as scratch:
            measure(ranks, Path(scratch) / "run")


if __name__ == "__main__":
    main()
