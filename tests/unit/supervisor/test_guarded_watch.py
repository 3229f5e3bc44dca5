"""What the report says of when a finding was found that no look of this node has found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.diagnosis.judging import Judge, Judged
from distdebug.diagnosis.rules.node_lost import lost_without_ranks
from distdebug.record import steady_clock
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.record.snapshot import LostNode, Process, Rank, Snapshot
from distdebug.supervisor.guarded_watch import Announcements, GuardedWatch, OwnFaults
from distdebug.supervisor.watch import Policy

SILENT_S = 2.6


class Nobody:
    """No rank is there to be seen."""

    change_mark: tuple[object, ...] = ()

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        del finished
        return ()

    def starting(self) -> bool:
        return False

    def all_told(self) -> bool:
        return False

    def only_calling(self) -> bool:
        return False

    def settled(self, since_s: float, about: Finding) -> bool:
        del since_s, about
        return True


def test_a_lost_head_is_found_when_this_node_says_so(tmp_path: Path) -> None:
    """Not by a look: on a busy machine none may have come between the silence and the end."""
    announcements = Announcements(RunDirectory.create(tmp_path))
    watched = GuardedWatch(Nobody(), Policy(), OwnFaults(), announcements)
    lost = lost_without_ranks(
        LostNode("node0", steady_clock.now_ns() - int(SILENT_S * 1e9), (0, 1))
    )
    assert watched.detected_after_s.get(lost.identity) is None
    watched.found(lost)
    after_s = watched.detected_after_s.get(lost.identity)
    assert after_s is not None
    assert SILENT_S - 0.01 <= after_s < SILENT_S + 30


class Ranks(Nobody):
    """One here, one on another node."""

    def __init__(self) -> None:
        alive = Process(alive=True)
        self.ranks = {
            0: Rank(0, 2, 77, alive, joins=True),
            1: Rank(1, 2, 78, alive, joins=True, node=3),
        }

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        del finished
        return [Snapshot(steady_clock.now_ns(), 2, self.ranks)]


def test_only_processes_of_this_host_are_sampled(tmp_path: Path) -> None:
    announcements = Announcements(RunDirectory.create(tmp_path))
    watched = GuardedWatch(Ranks(), Policy(), OwnFaults(), announcements)
    assert watched.pids_here == {}
    watched.observe()
    assert watched.ranks.keys() == {0, 1}
    assert watched.pids_here == {0: 77}


def test_of_what_has_no_time_none_is_made_up(tmp_path: Path) -> None:
    """Nodes that never came: nobody could have seen that at one moment."""
    announcements = Announcements(RunDirectory.create(tmp_path))
    watched = GuardedWatch(Nobody(), Policy(), OwnFaults(), announcements)
    missing = Finding(kind="join_timeout", message="1 of 2 nodes has come", culprits=())
    watched.found(missing)
    assert watched.detected_after_s == {}


def test_how_ranks_ended_is_looked_at_and_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To judge 16,384 ranks that have ended takes four times the memory of the whole run; a look
    in between is judged."""
    judged: list[object] = []

    def look(self: Judge, snapshots: object) -> Judged:
        judged.append(snapshots)
        return Judged()

    monkeypatch.setattr(Judge, "look", look)
    announcements = Announcements(RunDirectory.create(tmp_path))
    watched = GuardedWatch(Nobody(), Policy(), OwnFaults(), announcements)
    assert watched.observe() is not None
    assert len(judged) == 1
    assert watched.only_look().findings == ()
    assert len(judged) == 1
