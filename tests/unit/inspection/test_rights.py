"""Processes whose stacks cannot be read: what is known of them is said, and what it would take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.inspection.inspect import inspect
from distdebug.inspection.look import Limits
from distdebug.inspection.processes import Job, Process
from distdebug.inspection.rights import needed
from distdebug.supervisor.stacks import stacks
from distdebug.system.proc import read_stat

NOTHING, ALL = "0000000000000000", "000001ffffffffff"


def proc(folder: Path, capabilities: str, scope: int | None) -> Path:
    """A /proc of a process with these capabilities; process 7 is of the user of this test."""
    (folder / "7").mkdir()
    (folder / "self").mkdir()
    (folder / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    if scope is not None:
        (folder / "sys/kernel/yama").mkdir(parents=True)
        (folder / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    return folder


@pytest.mark.parametrize(
    ("capabilities", "scope", "expected"),
    [
        (NOTHING, 1, "--ptrace-any"),
        (NOTHING, 2, "CAP_SYS_PTRACE"),
        (NOTHING, 3, "no process may"),
        (NOTHING, 0, "--cap-add SYS_PTRACE"),
        (NOTHING, None, "--cap-add SYS_PTRACE"),
        (ALL, 1, "seccomp"),
    ],
)
def test_what_it_takes(tmp_path: Path, capabilities: str, scope: int | None, expected: str) -> None:
    owner = tmp_path.stat().st_uid
    assert expected in needed([7], proc(tmp_path, capabilities, scope), owner)


def test_whose_the_process_is(tmp_path: Path) -> None:
    owner = tmp_path.stat().st_uid
    said = needed([6, 7], proc(tmp_path, NOTHING, 1), owner + 1)
    assert f"process 7 belong to user {owner}, and this is user {owner + 1}" in said


def test_nothing_is_said_of_a_rank_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as sleeper:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        stat = read_stat(sleeper.pid)
        assert stat is not None
        rank = Process(sleeper.pid, stat.parent, stat.start_ticks, rank=0, world_size=1)
        seen = inspect(Job(stat.parent, "train", (rank,)), Limits(waiting_s=0.0, still_s=0.1))
        sleeper.communicate(b"\n")
    report = seen.report()
    assert (report["findings"], report["outcome"]) == ([], "running")
    assert "the stacks of rank 0 cannot be read" in report["notes"][0]
    assert any("it is not installed" in note for note in report["notes"])
    assert report["ranks"]["0"]["state"] == "has a stack that cannot be read, sleeps"
