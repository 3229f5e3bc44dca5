"""What a process is doing and how it ended, from real processes and from recorded counters."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdebug.record.exits import ExitLog, tell_asked
from distdebug.supervisor.limits import LOOKS_APART_S
from distdebug.supervisor.machine.processes import ProcessTable
from distdebug.system.memory import OomWatch
from distdebug.system.proc import read_stat
from tests.support.waiting import until
from tests.unit.supervisor.process_tools import python

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def start_ticks(pid: int) -> int:
    stat = read_stat(pid)
    assert stat is not None
    return stat.start_ticks


def test_a_live_process(sleeper: subprocess.Popen[bytes]) -> None:
    table = ProcessTable(ExitLog())
    ticks = start_ticks(sleeper.pid)
    until(lambda: table.observe(sleeper.pid, ticks).state == "S")
    seen = table.observe(sleeper.pid, ticks)
    assert (seen.alive, seen.ended_ns) == (True, None)


def test_a_stopped_process(sleeper: subprocess.Popen[bytes]) -> None:
    table = ProcessTable(ExitLog())
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: table.observe(sleeper.pid).state == "T")
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: table.observe(sleeper.pid).state == "S")


@pytest.mark.parametrize(("how", "code", "number"), [("exit 9", 9, None), ("kill -9 $$", None, 9)])
def test_a_zombie_tells_how_it_ended(how: str, code: int | None, number: int | None) -> None:
    with subprocess.Popen(["sh", "-c", how]) as process:
        table = ProcessTable(ExitLog())
        before_ns = time.time_ns()
        until(lambda: not table.observe(process.pid).alive)
        seen = table.observe(process.pid)
    assert (seen.exit_code, seen.signal, seen.oom_killed) == (code, number, False)
    assert seen.ended_ns is not None
    assert before_ns - 1_000_000_000 < seen.ended_ns <= time.time_ns()
    assert table.observe(process.pid) == seen, "what is known stays, when the zombie has gone"


def test_a_reaped_process_is_looked_up_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "exits.jsonl"
    table = ProcessTable(ExitLog(log))
    process = subprocess.Popen(["sleep", "600"])
    ticks = start_ticks(process.pid)
    assert table.observe(process.pid, ticks).alive
    process.kill()
    process.wait()
    table.refresh()
    seen = table.observe(process.pid, ticks)
    assert (seen.alive, seen.exit_code, seen.signal) == (False, None, None)
    line = json.dumps({"pid": process.pid, "status": 9, "time_ns": time.time_ns()})
    with log.open("a") as file:
        file.write("garbage\n[]\n{}\n" + line[:10])
        file.flush()
        table.refresh()
        assert table.observe(process.pid, ticks).signal is None
        file.write(line[10:] + "\n")
    table.refresh()
    assert table.observe(process.pid, ticks).signal == 9


@pytest.mark.parametrize("replaced", [False, True])
def test_what_a_parent_says_of_a_signal_of_its_own(tmp_path: Path, replaced: bool) -> None:
    log = tmp_path / "exits.jsonl"
    exits = ExitLog(log)
    tell_asked(log, 17, signal.SIGTERM, replaced)
    tell_asked(log, 18, signal.SIGTERM, replaced)
    exits.poll()
    exits.add(17, signal.SIGTERM, time.time_ns())
    exits.add(18, signal.SIGKILL, time.time_ns())  # it did not end of that
    found, other = exits.find(17), exits.find(18)
    assert found is not None
    assert other is not None
    assert (found.asked, found.replaced) == (True, replaced)
    assert (other.asked, other.replaced) == (False, False)


def test_a_reused_pid_is_not_taken_for_the_old_process(sleeper: subprocess.Popen[bytes]) -> None:
    table = ProcessTable(ExitLog())
    ticks = start_ticks(sleeper.pid)
    assert not table.observe(sleeper.pid, ticks - 1000).alive
    assert table.observe(sleeper.pid, ticks).alive


def test_an_exit_from_before_the_process_began_is_another_ones(
    sleeper: subprocess.Popen[bytes],
) -> None:
    exits = ExitLog()
    exits.add(sleeper.pid, 0, time.time_ns() - 60_000_000_000)
    table = ProcessTable(exits)
    assert table.observe(sleeper.pid).alive
    sleeper.kill()
    sleeper.wait()
    assert table.observe(sleeper.pid).exit_code is None
    exits.add(sleeper.pid, 9, time.time_ns())
    assert table.observe(sleeper.pid).signal == 9


def test_busy_and_idle_are_told_apart(sleeper: subprocess.Popen[bytes]) -> None:
    table = ProcessTable(ExitLog())
    with subprocess.Popen(python("while True: pass")) as spinner:
        try:
            assert table.observe(spinner.pid).cpu_busy is None
            until(lambda: table.observe(spinner.pid).cpu_busy)
            table.observe(sleeper.pid)
            time.sleep(LOOKS_APART_S)
            assert table.observe(sleeper.pid).cpu_busy is False
        finally:
            spinner.kill()


def test_a_process_that_never_was() -> None:
    seen = ProcessTable(ExitLog()).observe(2**22 + 1)
    assert (seen.alive, seen.exit_code, seen.signal) == (False, None, None)


def test_names_with_spaces_and_parentheses(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = ["S", "1", *["0"] * 9, "40", "2", "0", "0", "20", "0", "8", "0", "99", "0", "3"]
    fields += ["0"] * 27 + ["256", "0"]
    (tmp_path / "7" / "stat").write_text(f"7 (a) R 1 (b) {' '.join(fields)}\n")
    stat = read_stat(7, tmp_path)
    assert stat is not None
    assert (stat.state, stat.parent, stat.cpu_ticks, stat.threads) == ("S", 1, 42, 8)
    assert (stat.start_ticks, stat.wait_status) == (99, 256)


class FakeHost:
    """A /proc and a /sys/fs/cgroup with counters that the test raises."""

    def __init__(self, root: Path, lines: str, counter: str) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        for pid in ("41", "42"):
            (self.proc / pid).mkdir(parents=True)
            (self.proc / pid / "cgroup").write_text(lines)
        self.counter = self.cgroups / counter if counter else self.proc / "vmstat"
        self.counter.parent.mkdir(parents=True, exist_ok=True)
        (self.proc / "vmstat").write_text("nr_free_pages 3\noom_kill 5\n")
        self.count(5)

    def count(self, kills: int) -> None:
        self.counter.write_text(f"low 0\noom 1\noom_kill {kills}\noom_group_kill 9\n")

    def watch(self, kernel_log: Path | None = None) -> OomWatch:
        return OomWatch(self.proc, self.cgroups, kernel_log)


@pytest.mark.parametrize(
    ("lines", "counter"),
    [
        ("0::/job.slice/rank\n", "job.slice/rank/memory.events"),
        ("1:name=systemd:/\n0::/job\n", "unified/job/memory.events"),
        ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control"),
        ("4:cpu,memory:/docker/123\n", "memory/memory.oom_control"),
        ("0::/hidden\n", ""),
    ],
)
def test_a_rise_of_the_counter_explains_as_many_deaths(
    tmp_path: Path, lines: str, counter: str
) -> None:
    host = FakeHost(tmp_path, lines, counter)
    oom = host.watch()
    oom.watch(41)
    oom.watch(42)
    assert not oom.killed(41)
    host.count(6)
    assert oom.killed(42)
    assert not oom.killed(41)


def test_the_kernel_log_names_the_pid(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, "0::/hidden\n", "")
    log = tmp_path / "kmsg"
    log.write_text("")
    oom = host.watch(log)
    with log.open("a") as file:
        file.write("3,1,2,-;Memory cgroup out of memory: Killed process 41 (python) total-vm:1kB\n")
    assert oom.killed(41)
    assert not oom.killed(42)


def test_only_a_sigkill_is_the_oom_killers(tmp_path: Path) -> None:
    class Always(OomWatch):
        def killed(self, pid: int) -> bool:
            return True

    for how, expected in (("kill -9 $$", True), ("kill -15 $$", False), ("exit 137", False)):
        with subprocess.Popen(["sh", "-c", how]) as process:
            table = ProcessTable(ExitLog(), oom=Always())
            until(lambda table=table, pid=process.pid: not table.observe(pid).alive)
            assert table.observe(process.pid).oom_killed is expected


def test_observing_is_cheap(sleeper: subprocess.Popen[bytes]) -> None:
    table = ProcessTable(ExitLog(Path("/nonexistent/exits.jsonl")), oom=OomWatch(kernel_log=None))
    ticks = start_ticks(sleeper.pid)
    began_s = time.process_time()
    for _ in range(1000):
        table.refresh()
        table.observe(sleeper.pid, ticks)
    assert time.process_time() - began_s < 0.2, "200 µs a look"
