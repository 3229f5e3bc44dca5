"""A limit of processes and threads is named where it was reached, and nowhere else."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.supervisor.command.launch import Launch
from distdebug.supervisor.machine.task_limit import TaskLimit

ERROR = Finding(
    kind="rank_exception",
    message="rank 0 raised RuntimeError: Resource temporarily unavailable at train.py:2",
    culprits=(0,),
    victims=(1,),
    details=("rank 1 raised the same",),
)


class FakeHost:
    """A /proc, and cgroups of which one has a limit."""

    def __init__(self, root: Path, line: str, events: str, limited: str) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.events, self.limited = self.cgroups / events, self.cgroups / limited
        own = self.proc / str(os.getpid())
        for folder in (own, self.events, self.limited):
            folder.mkdir(parents=True, exist_ok=True)
        (own / "cgroup").write_text(line)
        (self.events / "pids.max").write_text("max\n")
        (self.limited / "pids.max").write_text("12\n")
        self.refuse(3)

    def refuse(self, times: int) -> None:
        (self.events / "pids.events").write_text(f"max {times}\n")

    def limit(self) -> TaskLimit:
        return TaskLimit(self.proc, self.cgroups)


@pytest.mark.parametrize(
    ("line", "events", "limited"),
    [
        ("8:pids:/job/rank\n0::/\n", "pids/job/rank", "pids/job"),
        ("0::/job/rank\n", "job/rank", "job"),
        ("0::/job/rank\n", "job/rank", "job/rank"),
        ("8:pids:/docker/123\n", "pids", "pids"),
    ],
)
def test_a_cgroup_that_refused_is_named(
    line: str, events: str, limited: str, tmp_path: Path
) -> None:
    host = FakeHost(tmp_path, line, events, limited)
    limit = host.limit()
    with Launch() as launch:
        assert limit.explained(ERROR, launch) is ERROR, "nothing was refused since"
        host.refuse(4)
        found = limit.explained(ERROR, launch)
        assert found is not None
        assert limit.explained(found, launch) is found
    assert found.message == (
        "the limit of processes and threads of this cgroup was reached (pids.max is 12 in "
        f"{host.limited}): {ERROR.message}"
    )
    assert found.cause == "task_limit"
    assert "are distdebug's, and one more in each rank" in found.details[0]
    assert found.details[1:] == ERROR.details
    assert found.identity == ERROR.identity


def test_what_is_about_something_else_stays_as_it_is(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, "0::/job\n", "job", "job")
    limit = host.limit()
    host.refuse(4)
    other = Finding(kind="rank_exception", message="rank 0 raised ValueError", culprits=(0,))
    with Launch() as launch:
        assert limit.explained(other, launch) is other
        assert limit.explained(None, launch) is None


@pytest.mark.parametrize(
    ("most", "user", "named"),
    [(30, 1000, True), (100_000, 1000, False), (30, 0, False), (resource.RLIM_INFINITY, 1, False)],
)
def test_a_limit_of_the_user(
    most: int, user: int, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = TaskLimit(tmp_path, tmp_path)
    monkeypatch.setattr(TaskLimit, "_of_this_user", lambda _: 24)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("`ulimit -u` is 30" in limit.reached()) == named
    assert bool(limit.reached()) == named


def test_the_threads_of_this_user_are_counted() -> None:
    assert TaskLimit()._of_this_user() >= len(os.listdir("/proc/self/task"))
