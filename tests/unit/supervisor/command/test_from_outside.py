"""Ranks without a record are named once, and judged from outside while no other rank lives."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from threading import Event
from typing import Any

from distdebug.diagnosis.findings import Finding
from distdebug.diagnosis.limits import Limits
from distdebug.supervisor.command.reach import FromOutside, Reach
from tests.support.waiting import until

from .test_reach import _program

SUSPECTED = Finding("missing_rank", "suspected: rank 1 does not come", (1,), proven=False)


class Job:
    """Two ranks, whose PYTHONPATH was replaced, and the looks at them. Nothing passes but a look
    that was asked for: `notice_after_s` is over at once."""

    def __init__(
        self, tmp_path: Path, finding: Finding | None, notice_after_s: float = 0.0
    ) -> None:
        self.finding = finding
        self.asked: list[float] = []
        self.said: list[str] = []
        self.looked = Event()
        reach = Reach("/run", "/site", tmp_path)
        for rank in range(2):
            _program(
                tmp_path, 70 + rank, "python", "a.py", DISTDEBUG_RUN_DIR="/run", RANK=f"{rank}"
            )
        reach.look([70, 71])
        limits = Limits(hang_timeout_s=0.03, notice_after_s=notice_after_s)
        self.outside = FromOutside(self._inspect, reach, limits, self.said.append)

    def _inspect(self, pids: Collection[int], limit_s: float) -> tuple[dict[str, Any], Any]:
        self.asked.append(limit_s)
        ranks = {str(pid - 70): {"pid": pid} for pid in sorted(pids)}
        self.looked.set()
        return {"ranks": ranks, "world_size": 2}, self.finding

    def seen(self, *watched: int, looks: int = 2) -> Finding | None:
        """What is suspected once so many more looks are over."""
        found: list[Finding | None] = []
        wanted = len(self.asked) + looks

        def over() -> bool:
            found.append(self.outside.look([70, 71], watched))
            return len(self.asked) >= wanted

        until(over)
        return found[-1]


def test_what_is_suspected_of_ranks_none_of_which_is_watched(tmp_path: Path) -> None:
    job = Job(tmp_path, SUSPECTED)
    found = job.seen()
    assert found is not None
    assert (found.kind, found.culprits, found.proven) == ("missing_rank", (1,), False)
    assert "no rank is watched" in found.details[-1]
    assert "its PYTHONPATH was replaced" in found.details[-1]
    assert job.asked[0] == 0.03


def test_who_is_not_watched_is_said_once_with_the_reason_and_what_to_type(tmp_path: Path) -> None:
    job = Job(tmp_path, None)
    assert job.seen(looks=3) is None
    (said,) = job.said
    assert said.startswith("ranks 0,1 are not watched: process 70 (python a.py) and 1 more ")
    assert "export PYTHONPATH=$PYTHONPATH" in said
    assert "distdebug inspect --pid 70" in said


def test_while_a_rank_is_watched_records_judge(tmp_path: Path) -> None:
    job = Job(tmp_path, SUSPECTED)
    assert job.seen(70) is None
    (said,) = job.said
    assert said.startswith("rank 1 is not watched: process 71 ")


def test_ranks_that_are_all_watched_are_not_looked_at(tmp_path: Path) -> None:
    job = Job(tmp_path, SUSPECTED)
    assert [job.outside.look([70, 71], [70, 71]) for _ in range(3)] == [None] * 3
    assert (job.asked, job.said) == ([], [])


def test_nothing_is_said_before_the_time_of_a_notice(tmp_path: Path) -> None:
    job = Job(tmp_path, SUSPECTED, notice_after_s=3600)
    assert [job.outside.look([70, 71], []) for _ in range(3)] == [None] * 3
    assert (job.asked, job.said) == ([], [])


def test_what_ends_is_suspected_no_more(tmp_path: Path) -> None:
    job = Job(tmp_path, SUSPECTED)
    assert job.seen() is not None
    assert job.outside.look([], []) is None
