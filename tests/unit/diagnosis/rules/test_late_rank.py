"""What is said of a rank that has not come: where its main thread stands, whatever others do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from distdebug.diagnosis.facts.channels import Channels
from distdebug.diagnosis.facts.needs import Needs
from distdebug.diagnosis.facts.world import World
from distdebug.diagnosis.limits import SECOND_NS, Limits
from distdebug.diagnosis.rules import late_rank
from distdebug.diagnosis.rules.late_rank import latest, refine_cause
from distdebug.record.snapshot import CallSite, History
from distdebug.record.wording import RankState

from ..builder import Run, all_reduce, recv, send


def main_thread_late() -> Run:
    """Rank 1 runs user code, while another thread of it waits in a call of another group."""
    run = Run(3)
    run.new_group("1", (0, 1, 2))
    run[0, 2].calls(all_reduce(8), waits=True)
    run[1].calls(all_reduce(4), group="1", waits=True, thread=7, line=40)
    run[1].free_threads = 1
    run[1].location = CallSite("/home/user/train.py", 55, "step")
    run.passes(100)
    return run


def test_a_rank_whose_other_thread_waits_is_told_by_its_main_thread() -> None:
    run = main_thread_late()
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("missing_rank", (1,))
    assert (
        "rank 1: runs user code at train.py:55 in step, while a thread of it waits in "
        "all_reduce(sum, float32[4]) at train.py:40 in step"
    ) in found.message
    location = found.ranks[1].location
    assert location is not None
    assert location.line == 55


def test_a_lock_stands_where_the_main_thread_is_not_behind_the_call_of_another() -> None:
    run = main_thread_late()
    (found,) = run.errors()
    better = refine_cause(found, {1: RankState.WAITS_FOR_LOCK})
    assert better.cause == "lock"
    assert "rank 1: waits for a lock at train.py:55 in step, while a thread" in better.message
    assert "runs user code" not in better.message
    assert better.ranks[1].state == "waits for a lock"
    assert refine_cause(found, {1: RankState.RUNS}).message == found.message


def chain_behind_a_busy_thread(is_async: bool = False) -> Run:
    """Rank 2 is late for a call in which rank 1 waits, and rank 0 waits for rank 1, in which a
    thread runs that has nothing to do with either."""
    run = Run(3)
    run.new_group("a", (0, 1))
    run.new_group("b", (1, 2))
    run[0, 1].calls(all_reduce(8), group="a")
    run[0].calls(all_reduce(8), group="a", waits=True)
    run[1].calls(all_reduce(4), group="b", waits=True, line=40, is_async=is_async)
    run[1].free_threads = 1
    return run


def test_a_thread_that_writes_metrics_does_not_make_its_rank_the_late_one() -> None:
    run = chain_behind_a_busy_thread()
    run.passes(100)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("missing_rank", (2,))


def test_the_thread_that_makes_the_groups_calls_is_the_one_that_runs() -> None:
    """It has made an asynchronous call, for which another thread waits."""
    run = chain_behind_a_busy_thread(is_async=True)
    run.passes(100)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("missing_rank", (1,))


@pytest.mark.parametrize(("timeout_s", "said"), [(60.0, " of 60 s,"), (30.0, ","), (None, ",")])
def test_the_timeout_that_ended_the_others(timeout_s: float | None, said: str) -> None:
    """That of the group, if it is the one that has run out."""
    run = Run(2)
    key = next(iter(run[0].groups))
    run[0].groups[key] = replace(run[0].groups[key], timeout_s=timeout_s)
    run[0].calls(all_reduce(8), fails=True)
    run.passes(60)
    run[0].raises("Timed out waiting 60000ms for recv operation to complete")
    run[1].exits(signal=15)
    run.limits = replace(run.limits, failed=True)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("missing_rank", (1,))
    assert f"has not come until the program's own timeout{said} while" in found.message


def test_before_its_first_call_of_the_group_the_main_thread_counts() -> None:
    for thread, culprit in ((1001, 2), (7, 1)):
        run = Run(3)
        run.new_group("a", (0, 1))
        run.new_group("b", (1, 2))
        run[0].calls(all_reduce(8), group="a", waits=True)
        run[1].calls(all_reduce(4), group="b", waits=True, thread=thread)
        run[1].free_threads = 1
        run.passes(100)
        (found,) = run.errors()
        assert (found.kind, found.culprits) == ("missing_rank", (culprit,))


def control_thread(goes_on: bool, thread: int = 7) -> Run:
    """A thread of rank 1 waits for the word to stop, which rank 0 gives when all is over; both
    train meanwhile, or do not."""
    run = Run(2)
    run.new_group("control", (0, 1))
    run[1].calls(all_reduce(1), group="control", waits=True, thread=thread, line=40)
    for _ in range(10):
        run.passes(10)
        if goes_on:
            run[0, 1].calls(all_reduce(8))
    run[0].free_threads = run[1].free_threads = 1
    return run


def test_a_thread_that_waits_while_its_rank_goes_on_accuses_nobody() -> None:
    result = control_thread(goes_on=True).diagnose()
    assert (result.findings, result.notices) == ((), ())


def test_a_rank_that_does_not_go_on_does() -> None:
    (found,) = control_thread(goes_on=False).errors()
    assert (found.kind, found.culprits) == ("missing_rank", (0,))


def test_nor_does_it_help_where_the_main_thread_is_the_one_that_waits() -> None:
    (found,) = control_thread(goes_on=True, thread=1001).errors()
    assert (found.kind, found.culprits) == ("missing_rank", (0,))


class _Counting:
    """A history that counts how often it is asked for its last calls."""

    def __init__(self, history: History, asked: list[int]) -> None:
        self._history, self._asked = history, asked

    def __getattr__(self, name: str) -> Any:
        if name == "recent":
            self._asked.append(1)
        return getattr(self._history, name)


@pytest.mark.parametrize("missing", [False, True])
def test_who_is_late_is_known_without_the_calls_of_all_that_wait(missing: bool) -> None:
    """Of thousands of ranks that wait in one call the record of one is read, or of none where all
    have come to it."""
    run, asked = Run(64), list[int]()
    for rank in range(63 if missing else 64):
        run[rank].calls(all_reduce(8), waits=True)
    run.passes(60)
    snapshot = run.snapshot()
    beside = {  # who waits is not the main thread
        number: replace(rank, pid=10**6, history=cast(History, _Counting(rank.history, asked)))
        for number, rank in snapshot.ranks.items()
        if rank.history is not None
    }
    world = World(replace(snapshot, ranks={**snapshot.ranks, **beside}), None, Limits())
    found = latest(world, Needs(world, Channels(world)), SECOND_NS)
    assert (found.culprits if found else ()) == ((63,) if missing else ())
    assert len(asked) <= (2 if missing else 0)


def test_a_message_is_held_up_by_a_stopped_rank_that_is_one_of_its_ends() -> None:
    """And by no other one, though it is in the group, too."""
    run = Run(3)
    run[0].calls(send(1, 8), waits=True)
    run[1].calls(recv(0, 8), waits=True)
    run[2].is_stopped()
    run.passes(100)
    assert all(2 not in found.culprits for found in run.errors())
    run[1].is_stopped()
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.cause) == ("missing_rank", (1,), "stopped")


def test_a_long_cycle_of_messages_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its ranks waits for another reason; from each the same cycle was walked."""
    run, size, asked = Run(64), 64, []
    for rank in range(size):
        run[rank].calls(recv((rank + 1) % size), waits=True)
    run.passes(20)
    is_root = late_rank._is_root
    monkeypatch.setattr(
        late_rank, "_is_root", lambda *about: asked.append(about) or is_root(*about)
    )
    (found,) = run.diagnose().findings
    assert found.kind == "deadlock"
    assert size <= len(asked) <= 4 * size
