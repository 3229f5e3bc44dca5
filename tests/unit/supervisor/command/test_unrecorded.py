"""The death of a rank without a record is told without a word of what it did inside."""

from __future__ import annotations

import signal
from pathlib import Path

from distdebug.diagnosis.findings import Finding
from distdebug.record.exits import ExitLog
from distdebug.supervisor.command.reach import Reach, early_death

from .test_reach import _program

LOST = Finding("rank_exception", "rank 0 raised RuntimeError: Connection closed by peer", (0,))
BUG = Finding("rank_exception", "rank 0 raised KeyError: 'x'", (0,))
MISMATCH = Finding("op_mismatch", "ranks disagree", (0,))


def _reach(proc: Path) -> Reach:
    reach = Reach("/run", "/site", proc)
    for rank in range(3):
        _program(proc, 70 + rank, "python", "a.py", DISTDEBUG_RUN_DIR="/run", RANK=str(rank))
    reach.look([70, 71, 72])
    return reach


def _exits(**statuses: int) -> ExitLog:
    exits = ExitLog()
    for at, (pid, status) in enumerate(statuses.items()):
        exits.add(int(pid[1:]), status, at + 1)
    return exits


def test_it_says_how_and_why_it_was_not_watched_and_no_more(tmp_path: Path) -> None:
    exits = _exits(p72=signal.SIGTERM, p71=signal.SIGABRT)
    found = early_death(None, _reach(tmp_path), [0], exits)
    assert found is not None
    assert (found.kind, found.culprits, found.victims) == ("rank_died", (1,), (0, 2))
    assert found.message == (
        "rank 1 was killed by SIGABRT; it was not watched: its PYTHONPATH was replaced: write "
        "`export PYTHONPATH=$PYTHONPATH`"
    )
    assert found.ranks[1].state == "was killed by SIGABRT, not watched (process 71)"


def test_it_is_behind_a_rank_that_has_lost_a_peer_and_behind_nothing_else(tmp_path: Path) -> None:
    reach, exits = _reach(tmp_path), _exits(p71=1 << 8)
    found = early_death(LOST, reach, [0], exits)
    assert found is not None
    assert "rank 1 ended with exit code 1" in found.message
    for other in (BUG, MISMATCH):
        assert early_death(other, reach, [0], exits) is other


def test_without_a_death_nothing_is_changed(tmp_path: Path) -> None:
    reach = _reach(tmp_path)
    for exits in (_exits(), _exits(p71=0), _exits(p70=signal.SIGKILL)):
        assert early_death(LOST, reach, [0], exits) is LOST
        assert early_death(None, reach, [0], exits) is None


def test_the_kernels_kill_is_told_as_such(tmp_path: Path) -> None:
    reach, exits = _reach(tmp_path), _exits(p71=signal.SIGKILL)
    found = early_death(None, reach, [0], exits, oom_killed=lambda pid: pid == 71)
    assert found is not None
    assert "rank 1 was killed by SIGKILL (out of memory); it was not watched" in found.message
    assert found.data["oom_killed"] is True


def test_who_was_ended_when_its_launcher_was_killed_is_no_culprit(tmp_path: Path) -> None:
    reach = _reach(tmp_path)
    assert early_death(None, reach, [0], _exits(p71=signal.SIGTERM), orphaned=True) is None
    found = early_death(None, reach, [0], _exits(p71=signal.SIGABRT), orphaned=True)
    assert found is not None
