"""How often the processes of a job are looked at: no more than tells something."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdebug.supervisor.limits import MOST_GAP_S
from distdebug.supervisor.stacks import sights as looks
from distdebug.supervisor.stacks.sights import look
from distdebug.supervisor.stacks.stacks import Frame, ThreadStack
from distdebug.supervisor.stacks.standstill_watch import standstill_of
from distdebug.system import proc
from distdebug.system.proc import read_stat, wanted_core_s
from distdebug.system.threads import Asleep
from tests.support.waiting import until

NEEDED_S = 5.0
WAITS = (
    Frame("wait", "/lib/torch/distributed/distributed_c10d.py", 1),
    Frame("step", "/u/train.py", 9),
)
IDLE = (Frame("wait", "/usr/lib/python3.11/threading.py", 3),)


def stack(name: str, frames: Sequence[Frame], number: int) -> ThreadStack:
    return ThreadStack(number, number, name, False, False, tuple(frames))


def taken(slept_s: dict[int, float]) -> looks._Taken:
    threads = [stack("MainThread", WAITS, 1), stack("pool", IDLE, 2), stack("other", WAITS, 3)]
    return looks._Taken(
        "S", 0.0, [one for one in threads if one.native_id in (slept_s or {1})], slept_s
    )


@pytest.mark.parametrize(
    ("slept", "count", "why"),
    [
        ([{1: 30.0}, {1: 29.0}], 2, "all stand still for long"),
        ([{1: 30.0, 2: 0.1}, {1: 29.0, 2: 0.0}], 2, "a pool's thread wakes up now and then"),
        ([{1: 3.0}, {1: 2.0}], 2, "a job at work: nobody has waited for long, and is not late"),
        ([{1: 30.0}, {1: 0.0}], 3, "one waits for long, and another stands still since a moment"),
        ([{1: 30.0}, {1: 29.0, 3: 0.0}], 3, "the same, and it is no main thread"),
        ([{1: 0.1}, {1: 0.0}], 3, "all stand at one place, where one has woken up: in slices?"),
        ([{}, {}], 3, "the kernel does not tell"),
    ],
)
def test_a_third_look_is_taken_where_it_tells_more(
    monkeypatch: pytest.MonkeyPatch, slept: list[dict[int, float]], count: int, why: str
) -> None:
    seen = []

    def take(pids: Sequence[int], *_: Any) -> dict[int, looks._Taken]:
        seen.append(pids)
        return {pid: taken(slept[pid]) for pid in pids}

    monkeypatch.setattr(looks, "_take", take)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    look([0, 1], NEEDED_S, [])
    assert len(seen) == count, why


@pytest.mark.parametrize(
    ("shell_s", "child_s", "used_s", "at_work"),
    [
        ((0.0, 0.06, 0.12), 0.3, 0.01, False),  # a `sleep` each second, whose start took long
        ((0.0, 0.25, 1.2), 0.0, 0.0, True),  # a worker, which wants a core in between, too
        ((0.0, 0.01, 0.02), 0.3, 0.3, True),  # it starts compilers
    ],
)
def test_a_shell_that_polls_on_a_crowded_machine_does_not_work(
    monkeypatch: pytest.MonkeyPatch,
    shell_s: Sequence[float],
    child_s: float,
    used_s: float,
    at_work: bool,
) -> None:
    """It, and the `sleep` that it has just started, waited for a core for a part of the short time
    between two looks."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))

    def take(pids: Sequence[int], *_: Any) -> dict[int, looks._Taken]:
        number = 0 if clock[0] == 0.0 else 1 if clock[0] < 1.0 else 2
        shell = looks._Below(shell_s[number], 0, False)
        child = looks._Below(child_s, 0, False, used_s)
        return {pid: replace(taken({1: 30.0}), below={8: shell, 9 + number: child}) for pid in pids}

    monkeypatch.setattr(looks, "_take", take)
    assert look([1], NEEDED_S, [])[1].at_work is at_work


_WRITES = """
import sys, time
sys.stdin.readline()
with open(sys.argv[1], "wb") as file:
    file.write(bytes(4_000_000))
print(flush=True)
sys.stdin.readline()
"""


def test_what_a_process_writes_is_counted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITES, str(tmp_path / "checkpoint")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as saving:
        assert saving.stdin is not None
        assert saving.stdout is not None
        counts = [proc.moved_bytes(saving.pid)]
        saving.stdin.write(b"\n")
        saving.stdin.flush()
        saving.stdout.readline()
        counts += [proc.moved_bytes(saving.pid), proc.moved_bytes(saving.pid)]
        saving.stdin.close()
    assert counts[1] - counts[0] >= 4_000_000
    assert counts[2] == counts[1]
    sights = [
        looks._compared({1: before}, time.monotonic() - 1.0, {1: after})[1]
        for before, after in (
            (moved(0), moved(4_000_000)),
            (moved(4_000_000), moved(4_000_200)),  # a line of a log
        )
    ]
    assert [sight.moves_data for sight in sights] == [True, False]


def moved(count: int) -> looks._Taken:
    return looks._Taken("S", 0.0, [], {}, count)


_STARTS = """
import os, sys
if not os.fork():
    print(flush=True)
    while sys.argv[1] == "works":
        pass
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
os.kill(0, 9)
"""


@pytest.mark.parametrize("child", ["works", "sleeps"])
def test_who_waits_for_what_works(child: str) -> None:
    """A worker of a data loader, a compiler. (No stack is read: it is the processes that count.)"""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _STARTS, child]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        rank.stdout.readline()  # the child's: it does what it is here for, or is on its way there
        if child == "sleeps":
            until(
                lambda: not any(one.running for one in looks._below([rank.pid])[rank.pid].values())
            )
        seen = []
        for _ in range(2):
            below = looks._below([rank.pid])[rank.pid]
            assert len(below) == 1
            seen.append(looks._Taken("S", 0.0, [], {}, below=below))
            time.sleep(0.3)
        assert looks._others_work(seen[0], seen[1], 0.3) == (child == "works")
        rank.stdin.close()


@pytest.mark.parametrize(("waited_s", "works"), [(0.5, True), (0.05, False)])
def test_who_gets_no_core_works_all_the_same(tmp_path: Path, waited_s: float, works: bool) -> None:
    """A child on a crowded machine: it slept at both looks, and has waited for a core between."""
    stat = read_stat(os.getpid())
    assert stat is not None
    (tmp_path / "1").mkdir()
    seen = []
    for waited_ns in (0, int(waited_s * 1e9)):
        (tmp_path / "1" / "schedstat").write_text(f"0 {waited_ns} 1\n")
        below = {1: looks._Below(wanted_core_s(1, stat, tmp_path), 0, running=False)}
        seen.append(looks._Taken("S", 0.0, [], {}, below=below))
    assert looks._others_work(seen[0], seen[1], 1.0) == works


def test_who_was_stopped_for_a_moment_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """By py-spy, or a tracer; who is stopped each time is."""
    for states, stopped in (("ST", False), ("TS", False), ("tT", True)):
        takes = iter(states)

        def take(
            pids: Sequence[int], *_: Any, takes: Iterator[str] = takes
        ) -> dict[int, looks._Taken]:
            state = next(takes)
            return {pid: replace(taken({1: 30.0}), state=state) for pid in pids}

        monkeypatch.setattr(looks, "_take", take)
        assert look([1], NEEDED_S, [])[1].stopped == stopped, states


@pytest.mark.parametrize(
    ("wait", "slept_s", "wakes_in_s", "moves"),
    [
        ("wait_woken", {1: 0.1}, None, True),
        ("poll_schedule_timeout.constprop.0", {1: 0.1}, None, True),
        ("poll_schedule_timeout.constprop.0", {1: 0.1}, 0.05, False),  # 3.10's time.sleep
        ("wait_woken", {1: 30.0}, None, False),  # nothing comes any more
        ("hrtimer_nanosleep", {1: 0.1}, 0.05, False),  # it polls
        ("wait_woken", {}, None, False),  # the kernel does not tell
    ],
)
def test_who_gets_data_by_a_socket_moves_data(
    monkeypatch: pytest.MonkeyPatch,
    wait: str,
    slept_s: dict[int, float],
    wakes_in_s: float | None,
    moves: bool,
) -> None:
    receives = replace(stack("MainThread", IDLE, 1), wait=wait)

    def take(pids: Sequence[int], *_: Any) -> dict[int, looks._Taken]:
        asleep = {1: Asleep(wakes_in_s=wakes_in_s)}
        made = looks._Taken("S", 0.0, [receives], slept_s, asleep=asleep)
        return dict.fromkeys(pids, made)

    monkeypatch.setattr(looks, "_take", take)
    assert look([1], NEEDED_S, [])[1].moves_data is moves


@pytest.mark.parametrize(
    ("slept_s", "still_s"),
    [({1: 0.05}, MOST_GAP_S), ({1: 30.0}, 30.0), ({}, 9.0)],
    ids=["woke up", "slept", "the kernel does not tell"],
)
def test_two_looks_far_apart_say_no_more_of_who_woke_up_between_them(
    slept_s: dict[int, float], still_s: float
) -> None:
    """On a host with too much to do it takes seconds to look, and a job's ranks meet its steps
    thousands of times meanwhile."""
    sight = looks._compared({1: taken(slept_s)}, time.monotonic() - 9.0, {1: taken(slept_s)})[1]
    assert sight.main is not None
    assert sight.main.still_s == pytest.approx(still_s, abs=1.0)
    assert sight.main.woke == (slept_s != {1: 30.0})


@pytest.mark.parametrize(("states", "goes_on"), [("RR", "computes"), ("RS", ""), ("SR", "")])
def test_one_that_waits_for_a_core_does_not_stand_still(states: str, goes_on: str) -> None:
    """On a crowded machine a rank that takes itself down got 4 % of a core, and has no stack."""
    first, last = (looks._Taken(state, 0.0, [], {}) for state in states)
    sight = looks._compared({1: first}, time.monotonic() - 1.0, {1: last})[1]
    assert standstill_of(sight, 0, 9.0).goes_on == goes_on
