"""For how long a thread has slept, by the clock of the core that it was on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distdebug.system import threads as slept_module
from distdebug.system.proc import read_stat
from distdebug.system.threads import CoreClocks, last_scheduled_ms, slept

_SLEEPS = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(
    last_scheduled_ms(Path("/proc/thread-self")) is None, reason="this kernel does not tell"
)
@pytest.mark.parametrize("core", sorted(os.sched_getaffinity(0))[:4])
def test_who_sleeps_on_any_core_has_slept_since_then(core: int) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _SLEEPS, str(core)]
    allowed = os.sched_getaffinity(0)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        began_s = time.monotonic()
        child.stdout.readline()
        while (stat := read_stat(child.pid)) is None or stat.state != "S":
            time.sleep(0.01)  # it has yet to come to its read
        clocks = CoreClocks()
        before = slept(child.pid, clocks)[child.pid]
        time.sleep(0.5)
        after = slept(child.pid, clocks)[child.pid]
        now_s = time.monotonic()
        child.stdin.close()
    assert after - before >= 0.5
    assert after <= now_s - began_s + 0.1
    assert os.sched_getaffinity(0) == allowed


def test_the_cores_clocks_are_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a virtual machine's cores, whose host has taken ten minutes from one of them."""
    ahead_ms = {0: 0.0, 1: -600_000.0, 2: None}
    cores: list[int] = []

    def stat(_thread: int, _tasks: Path) -> object:
        return type("Stat", (), {"core": cores.pop(0)})

    now_ms = time.monotonic() * 1000
    monkeypatch.setattr(slept_module, "_ahead_ms", ahead_ms.__getitem__)
    monkeypatch.setattr(slept_module, "read_stat", stat)
    tasks = Path("/proc/self/task")
    found = []
    for pair, at_ms in (
        ((0, 0), now_ms - 3000),
        ((1, 1), now_ms - 603_000),
        ((0, 1), now_ms - 603_000),
        ((2, 2), now_ms),
    ):
        cores[:] = pair
        monkeypatch.setattr(slept_module, "last_scheduled_ms", lambda _task, at_ms=at_ms: at_ms)
        found.append(slept_module._slept_s(tasks, 1, CoreClocks()))
    assert found[:2] == [pytest.approx(3.0, abs=1.0)] * 2
    assert found[2:] == [0.0, None], "it has just moved; nobody may read that core's clock"


@pytest.mark.parametrize(
    ("told", "found"), [("86865123.25", 86865123.25), ("0.000000", None), ("", None)]
)
def test_who_waits_for_another_core_has_not_slept_since_the_host_was_started(
    told: str, found: float | None, tmp_path: Path
) -> None:
    """The kernel sets its clock to 0 when it moves a thread, until that runs."""
    row = f"se.exec_start                                :   {told}\n" if told else ""
    (tmp_path / "sched").write_text(f"python (1, #threads: 3)\n-----\n{row}nr_switches : 3\n")
    assert last_scheduled_ms(tmp_path) == found
