"""No rank is in a call, and nothing moves: what is said of it, and the twins that stay silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distdebug.diagnosis.diagnose import Diagnosis, diagnose
from distdebug.diagnosis.limits import Limits
from distdebug.record.layout import Activity, Phase
from distdebug.record.snapshot import CallSite, Snapshot, Standstill

from ..builder import Run, all_reduce

LIMITS = Limits(hang_timeout_s=5, notice_after_s=2)
ASLEEP = Standstill(0, site=CallSite("train.py", 8, "wait"), call="poll (baton.py:4)")
NOT_LEFT = Standstill(0, thread="uploader", site=CallSite("train.py", 5, "upload"), leaving=True)


def run_of(size: int = 2) -> Run:
    run = Run(size, limits=LIMITS)
    run.each(all_reduce(4))
    return run


def judged(run: Run, *still: Standstill | None, after_s: float = 6.0) -> Diagnosis:
    """After so many seconds in which the ranks, as far as they were seen to, stood still."""
    since_ns = run.snapshot().taken_ns
    before = run.snapshot()
    run.passes(after_s)
    return diagnose(_with(run.snapshot(), since_ns, *still), before, LIMITS)


def _with(snapshot: Snapshot, since_ns: int, *still: Standstill | None) -> Snapshot:
    ranks: dict[int, Any] = {}
    for number, rank in snapshot.ranks.items():
        one = still[number] if rank.process.alive else None
        seen = None if one is None else replace(one, since_ns=since_ns)
        ranks[number] = replace(rank, process=replace(rank.process, standstill=seen))
    return replace(snapshot, ranks=ranks)


def test_all_are_asleep() -> None:
    (found,) = judged(run_of(), ASLEEP, replace(ASLEEP, awaits="for 10.0.0.1:80")).findings
    assert (found.kind, found.culprits, found.proven) == ("stalled", (0, 1), False)
    assert found.exit_code == 93
    assert "nothing has moved for 6.0 s: rank 0: asleep in poll (baton.py:4) at" in found.message
    assert found.message.endswith("for 10.0.0.1:80")
    assert found.ranks[0].location == ASLEEP.site


def test_one_has_not_left() -> None:
    run = run_of()
    run[0].exits(0)
    (found,) = judged(run, None, NOT_LEFT).findings
    assert (found.kind, found.culprits, found.cause) == ("missing_rank", (1,), "user_code")
    assert 'has not left, its thread "uploader" is asleep' in found.message


def test_its_program_is_over_by_its_record() -> None:
    """A finalizer waits, say: where it does counts, and not the last line of the program."""
    run = run_of()
    run[0].exits(0)
    run[1].phase, run[1].exit_code, run[1].heartbeat_ns = Phase.ENDED, 0, run.now_ns
    (found,) = judged(run, None, NOT_LEFT).findings
    assert (found.kind, found.culprits) == ("missing_rank", (1,))
    assert found.ranks[1].location == NOT_LEFT.site
    assert found.ranks[1].state.startswith("has not left")


def test_a_notice_comes_first() -> None:
    told = judged(run_of(), ASLEEP, ASLEEP, after_s=3.0)
    assert told.findings == ()
    assert "no rank is in a call, and nothing moves any more" in told.notices[0].text


@pytest.mark.parametrize(
    "still",
    [
        (ASLEEP, None),
        (replace(ASLEEP, goes_on="serves at 0.0.0.0:80"), ASLEEP),
    ],
    ids=["one was not seen to stand", "a server may bring it on"],
)
def test_it_may_go_on(still: tuple[Standstill | None, ...]) -> None:
    told = judged(run_of(), *still)
    assert (told.findings, told.notices) == ((), ())


def test_others_wait_in_a_call() -> None:
    """It is for the rule of late ranks to say who does not come."""
    run = run_of()
    run[0].calls(all_reduce(4), waits=True)
    run[1].free_threads = 1
    (found,) = judged(run, ASLEEP, ASLEEP).findings
    assert (found.kind, found.culprits, found.victims) == ("missing_rank", (1,), (0,))


def test_a_breakpoint_is_no_standstill() -> None:
    run = run_of()
    run[0].waits_in(Activity.PAUSED)
    assert judged(run, ASLEEP, ASLEEP).findings == ()


def test_a_rank_was_never_seen() -> None:
    run = run_of(3)
    del run.ranks[2]
    assert all(one.kind != "stalled" for one in judged(run, ASLEEP, ASLEEP).findings)
