"""`distdebug inspect` where several jobs run: all of them, a line each, to choose by."""

from __future__ import annotations

import os

import pytest

from distdebug.cli import main
from distdebug.commands import inspect
from distdebug.inspection import processes
from distdebug.inspection.processes import Job, Process


def test_every_job_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [
        Job(100 + number, f"torchrun {number}.py", [Process(1, 0, 0, 0)]) for number in range(8)
    ]
    jobs[7] = Job(1, "", [Process(1, 0, 0), Process(2, 0, 0)])
    monkeypatch.setattr(processes, "find_jobs", lambda _below: jobs)
    assert main(["inspect"]) == 2
    first, *rows = capsys.readouterr().err.splitlines()
    assert first == "distdebug: 8 jobs run on this host: choose one with --job PID"
    assert rows[0] == "  rank 0 below process 100  torchrun 0.py"
    assert rows[7] == "  2 processes below process 1"
    assert len(rows) == 8


def test_the_pid_of_a_launcher_means_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Job(os.getppid(), "torchrun", (Process(os.getpid(), os.getppid(), 0, 0),))
    monkeypatch.setattr(processes, "find_jobs", lambda below=(): [launched])
    of_pids = inspect._of_pids
    assert of_pids([launched.launcher]) is launched
    assert of_pids([os.getpid()]) == launched, "that is the rank itself"
    spawned = Job(launched.launcher, "", [Process(os.getpid(), os.getppid(), 0)])
    monkeypatch.setattr(processes, "find_jobs", lambda below=(): [spawned])
    (alone,) = of_pids([launched.launcher]).processes
    assert alone.pid == launched.launcher, "a program that has started others may be a rank"
