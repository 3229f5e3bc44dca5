"""A planned rank that is killed, by itself, or by the kernel, which has no memory left for all
ranks of the job on one machine; and when those are woken that sleep."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path

import pytest

from distdebug.rank.plan.exchange import Planner
from distdebug.rank.plan.scheduler import PlanLimits, Scheduler
from distdebug.record.writing.program_writer import program_path
from distdebug.system import memory


def killed(directory: Path, counts: list[int], monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """A plan of one rank that ends by SIGKILL. `counts`: how many processes the kernel says that it
    has ended for want of memory, each time that it is asked."""
    monkeypatch.setattr(memory, "out_of_memory_kills", lambda: counts.pop(0))

    def fork(_rank: int, _connection: socket.socket) -> int:
        pid = os.fork()
        if not pid:
            os.kill(os.getpid(), signal.SIGKILL)
        return pid

    program_path(directory, 0).parent.mkdir(parents=True, exist_ok=True)
    limits = PlanLimits(jobs=1, memory_bytes=1 << 30, time_s=60)
    scheduler = Scheduler(directory, [0], limits, fork, lambda _modules: None)
    scheduler.run()
    return scheduler


def test_whom_the_kernel_ends_for_want_of_memory_has_not_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = killed(tmp_path, [4, 5], monkeypatch)
    assert (scheduler.cut, scheduler.ended) == ({0: "the machine's memory was full"}, {})


def test_whoever_else_is_killed_has_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = killed(tmp_path, [4, 4], monkeypatch)
    assert (scheduler.cut, scheduler.ended) == ({}, {0: signal.SIGKILL})
    assert '["ended",null,9]' in program_path(tmp_path, 0).read_text()


def test_no_time_passes_while_a_rank_runs(tmp_path: Path) -> None:
    """Who looks again and again for what another one makes would have looked often in vain."""
    woken, wakes = os.pipe()

    def fork(rank: int, connection: socket.socket) -> int:
        pid = os.fork()
        if not pid:
            if rank == 0:
                Planner(connection, {}).ask(["sleep", 1.0])
                os.write(wakes, b"woken")
                os._exit(0)
            too_early, _, _ = select.select([woken], [], [], 0.5)
            os._exit(1 if too_early else 0)
        return pid

    program_path(tmp_path, 0).parent.mkdir(parents=True)
    limits = PlanLimits(jobs=2, memory_bytes=1 << 30, time_s=60)
    scheduler = Scheduler(tmp_path, [0, 1], limits, fork, lambda _modules: None)
    scheduler.run()
    os.close(woken)
    os.close(wakes)
    assert scheduler.ended == {0: 0, 1: 0}
