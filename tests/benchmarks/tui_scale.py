"""What the terminal app costs, against its bars: first screen, keys, CPU, memory, a refresh.

python tests/benchmarks/tui_scale.py [real] [8] [1024] [16384]     (default: all)

`real` starts 8 ranks that call without pause; the others are made up (fixtures/make_run.py), and a
process of its own touches their records four times a second, as their calls would. The app runs in
a pseudo-terminal. What Python and textual alone take to start is measured in the same run: on a
crowded machine compare with that.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from distdebug.record import layout
from distdebug.tui.feed import Feed
from distdebug.tui.picture import Focus
from distdebug.tui.screens.base import Chosen
from distdebug.tui.screens.overview import Overview
from fixtures.make_run import make
from tests.benchmarks.tui_app import ROOT, App, environment

MEASURED_S = 10.0
MOVES_EVERY_S = 0.25
REAL_RANKS = 8
FIRST_SCREENS = 5
ROUNDS = 40
PROGRAM = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
tensor = torch.zeros(8)
while True:
    dist.all_reduce(tensor)
"""
STARTS = (
    ("python alone", "pass"),
    ("import textual.app", "import textual.app"),
    ("import distdebug.tui.app", "import distdebug.tui.app"),
)


def bar(what: str, value: float, limit: float, unit: str, more: str = "") -> None:
    """One figure against its bar."""
    word = "ok" if value <= limit else "MISSED"
    text = f"{value:.2f}" if unit == "s" else f"{value:.1f}"
    print(f"  {what:<44} {text:>8} {unit:<4} (bar {limit:g}) {word:<7}{more}", flush=True)


def starts() -> None:
    """What comes before any code of ours, wall and CPU, the best of some."""
    print("for comparison, the best of 5 starts:")
    for name, code in STARTS:
        walls, cpus = [], []
        for _ in range(5):
            before, began_s = _children_cpu_s(), time.monotonic()
            subprocess.run([sys.executable, "-c", code], check=True, env=environment(), cwd=ROOT)
            walls.append(time.monotonic() - began_s)
            cpus.append(_children_cpu_s() - before)
        print(f"  {name:<44} {min(walls):>8.2f} s    ({min(cpus):.2f} s of CPU)", flush=True)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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


@contextmanager
def made_ranks(ranks: int, scratch: Path) -> Iterator[Path]:
    """A run directory that looks live, whose records move."""
    path = scratch / "run"
    directory = make(path, "healthy", ranks, hold=True)
    mover = subprocess.Popen([sys.executable, __file__, "--move", str(path)])
    try:
        yield path
    finally:
        mover.kill()
        mover.wait()
        directory.close()


@contextmanager
def real_ranks(scratch: Path) -> Iterator[Path]:
    """Ranks that call as fast as they can, below distdebug."""
    path, program = scratch / "run", scratch / "loop.py"
    program.write_text(PROGRAM)
    distdebug = str(Path(sys.executable).with_name("distdebug"))
    command = [distdebug, "run", "-n", str(REAL_RANKS), "--run-dir", str(path), str(program)]
    with open(scratch / "printed", "wb") as printed:
        run = subprocess.Popen(command, stdout=printed, stderr=printed, env=environment())
    try:
        feed = Feed(path, print)
        deadline = time.monotonic() + 120
        while feed.look(Focus()).calls < 1000 * REAL_RANKS:
            assert run.poll() is None, (scratch / "printed").read_text()
            assert time.monotonic() < deadline, "the ranks do not start"
            time.sleep(0.5)
        yield path
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(60)


def first_screens(path: Path, what: str) -> None:
    """From the command to the first screen, several times."""
    walls, cpus = [], []
    for _ in range(FIRST_SCREENS):
        app = App(path)
        walls.append(app.first_screen_s())
        cpus.append(app.cpu_s())
        app.close()
    worst = f"  median {statistics.median(walls):.2f}, worst {max(walls):.2f}; "
    bar(f"first screen, {what}", min(walls), 0.7, "s", f"{worst}{min(cpus):.2f} s of CPU")


def running(path: Path, what: str, share: float, keys: bool) -> None:
    """The CPU of a watched run, its memory, its keys."""
    app = App(path)
    app.first_screen_s()
    app.rests(3.0)
    before = app.written_bytes
    used = app.share(MEASURED_S)
    drawn = f"  {(app.written_bytes - before) / MEASURED_S / 1024:.1f} kB/s drawn"
    bar(f"share of a core, {what}", 100 * used, 100 * share, "%", drawn)
    total, own = app.memory()
    bar(f"memory, {what}", total / 2**20, 300, "MB", f"  {own / 2**20:.0f} MB of it its own")
    if keys:
        answers = [1e3 * one for one in app.answers_s(ROUNDS)]
        p50, p99 = answers[len(answers) // 2], answers[int(len(answers) * 0.99)]
        bar(f"a key, median of {len(answers)}, {what}", p50, 50, "ms")
        bar(f"a key, 99th percentile, {what}", p99, 50, "ms", f"  worst {answers[-1]:.0f}")
    app.close()


def refreshes(path: Path, what: str) -> None:
    """Reading and drawing without a terminal; the first look of all, with and without diagnosis."""
    first, brief = [], []
    for _ in range(3):
        brief.append(_timed(lambda: Feed(path, print).look(Focus(), brief=True)))
        first.append(_timed(lambda: Feed(path, print).look(Focus())))
    feed, view = Feed(path, print), Overview(Chosen())
    found = [_timed(lambda: view.body(feed.look(Focus()), 160, 50)) for _ in range(6)]
    more = f"  first look {min(brief):.2f} s, with a diagnosis {min(first):.2f}"
    bar(f"a refresh, {what}", statistics.median(found[1:]), 1.0, "s", more)


def _timed(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def measure(what: str, scratch: Path) -> None:
    """All figures of one kind of run."""
    if what == "real":
        print(f"{REAL_RANKS} real ranks that call without pause:")
        with real_ranks(scratch) as path:
            running(path, "8 real ranks", 0.05, keys=True)
            refreshes(path, "8 real ranks")
        return
    ranks = int(what)
    print(f"{ranks:,} made ranks:")
    with made_ranks(ranks, scratch) as path:
        if ranks <= 1024:
            first_screens(path, f"{ranks:,} ranks")
            running(path, f"{ranks:,} ranks", 0.05 if ranks <= 8 else 0.25, keys=True)
        refreshes(path, f"{ranks:,} ranks")


def main() -> None:
    """Measure, or move the ranks of a measurement."""
    if sys.argv[1:2] == ["--move"]:
        move(Path(sys.argv[2]))
        return
    starts()
    for what in sys.argv[1:] or ["8", "real", "1024", "16384"]:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=memory) as scratch:
            measure(what, Path(scratch))


if __name__ == "__main__":
    main()
