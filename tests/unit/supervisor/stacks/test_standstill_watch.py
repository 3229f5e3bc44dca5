"""When processes are looked at for a standstill, and when what was seen is forgotten."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdebug.diagnosis.limits import Limits
from distdebug.record.exits import ExitLog
from distdebug.record.layout import Activity
from distdebug.record.snapshot import Process, Rank, Wait
from distdebug.supervisor.machine.processes import ProcessTable
from distdebug.supervisor.stacks import standstill_watch
from distdebug.supervisor.stacks.standstill_watch import StandstillWatch
from tests.support.waiting import until

SLEEPS = "import threading; print(flush=True); threading.Event().wait()"
COMPUTES = "print(flush=True)\nwhile True: pass"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill_watch, "STANDSTILL_WINDOW_S", 0.1)
    monkeypatch.setattr(standstill_watch, "STANDSTILL_EVERY_S", 0.1)


class Watched:
    """One process, said to be rank 0, and the watch of it."""

    def __init__(self, tmp_path: Path, text: str) -> None:
        self.program = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        assert self.program.stdout is not None
        self.program.stdout.readline()
        self.table = ProcessTable(ExitLog(tmp_path / "exits.jsonl"))
        self.faults: list[Any] = []
        self.rank = Rank(0, 1, self.program.pid, Process(alive=True))
        self._watch = StandstillWatch(
            Limits(hang_timeout_s=2, notice_after_s=0.3),
            lambda: [self.program.pid],
            self.table,
            lambda *fault: self.faults.append(fault),
        )

    def stands(self) -> bool:
        """One round of the supervisor."""
        self._watch.look({0: self.rank})
        return self.program.pid in self.table.standstills

    def looks_for(self, seconds: float) -> bool:
        """Whether it was seen to stand still within that time."""
        end_s = time.monotonic() + seconds
        found = False
        while time.monotonic() < end_s:
            found = self.stands() or found
            time.sleep(0.02)
        return found


@pytest.fixture
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    found = Watched(tmp_path, getattr(request, "param", SLEEPS))
    yield found
    found.program.kill()
    found.program.communicate()


def test_one_that_sleeps_is_seen_until_it_calls(watched: Watched) -> None:
    until(watched.stands)
    one = watched.table.observe(watched.program.pid).standstill
    assert one is not None
    assert one.call.startswith("Event.wait") or one.site is not None, one
    watched.rank = replace(watched.rank, calls=1)
    until(lambda: not watched.stands())
    assert watched.faults == []


@pytest.mark.parametrize("watched", [COMPUTES], indirect=True)
def test_one_that_computes_is_not(watched: Watched) -> None:
    assert not watched.looks_for(1.5)


@pytest.mark.parametrize(("launchers", "moves"), [((), True), ((7,), False)])
def test_a_launcher_that_serves_the_ranks_store_moves_nothing(
    launchers: tuple[int, ...], moves: bool
) -> None:
    """Ranks that poll the store have it move some bytes; what a rank has started may download."""
    before, now = (
        standstill_watch._Sample(at_s, {0: (8, 3, 5)}, {7: (0, moved), 8: (0, 0)}, launchers)
        for at_s, moved in ((0.0, 0), (2.0, 4000))
    )
    assert standstill_watch._has_moved(before, now) is moves


@pytest.mark.parametrize("activity", [Activity.IN_CALL, Activity.PAUSED])
def test_one_that_waits_for_a_rank_or_for_a_person_is_not(
    watched: Watched, activity: Activity
) -> None:
    watched.rank = replace(watched.rank, waits=(Wait(watched.program.pid, activity, 1, 0),))
    assert not watched.looks_for(1.5)


def test_what_fails_in_a_look_is_told(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no /proc")

    monkeypatch.setattr(standstill_watch, "look", fail)
    until(lambda: watched.stands() or watched.faults)
    ((part, error),) = {(part, str(error)) for part, error in watched.faults}
    assert (part, error) == ("the look for a standstill", "no /proc")
