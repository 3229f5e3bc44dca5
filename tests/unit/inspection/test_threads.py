"""Which thread of a rank counts, where several of each communicate."""

from __future__ import annotations

from dataclasses import replace

from distdebug.inspection.look import Stance, of_one_kind
from distdebug.inspection.stance import of_threads
from distdebug.record.wording import RankState
from distdebug.supervisor.stacks.sights import Sight, Thread
from distdebug.supervisor.stacks.stacks import Frame, ThreadStack

METRICS, GRADIENTS = "train.py:metrics", "train.py:gradients"
WAITS = Stance(RankState.COLLECTIVE, op="all_reduce", still_s=30.0, thread=METRICS)
MOVES = Stance(RankState.COLLECTIVE, op="all_reduce", still_s=0.1, thread=GRADIENTS)
STUCK = Stance(RankState.CODE, still_s=30.0, cause="lock", thread=METRICS)
JOINS = Stance(RankState.CODE, still_s=40.0, cause="lock")


def test_a_thread_is_compared_with_its_peer() -> None:
    threads = {0: [MOVES, WAITS], 1: [MOVES, STUCK]}
    for taken in (MOVES, JOINS):
        assert of_one_kind({0: WAITS, 1: taken}, threads) == {0: WAITS, 1: STUCK}


def test_who_has_no_such_thread_or_waits_himself_stays() -> None:
    trains = replace(WAITS, thread="", still_s=12.0)
    assert of_one_kind({0: WAITS, 1: trains}, {0: [WAITS], 1: [STUCK]}) == {0: WAITS, 1: trains}
    assert of_one_kind({0: WAITS, 1: JOINS}, {0: [WAITS], 1: [MOVES]}) == {0: WAITS, 1: JOINS}


def test_of_several_threads_of_one_function_nobody_knows_which_are_peers() -> None:
    stances = {0: WAITS, 1: JOINS}
    assert of_one_kind(stances, {0: [WAITS, MOVES], 1: [STUCK, WAITS]}) == stances


def test_where_no_thread_waits_nothing_changes() -> None:
    stances = {0: replace(WAITS, thread=""), 1: JOINS}
    assert of_one_kind(stances, {0: [WAITS], 1: [STUCK]}) == stances


def test_a_thread_is_known_by_the_users_function_that_it_began_with() -> None:
    """A pool's thread that runs a function of torch's has none."""
    library = "/usr/lib/python3.12"
    torchs = Frame(
        "all_reduce", f"{library}/site-packages/torch/distributed/distributed_c10d.py", 5
    )
    own = [Frame("average", "train.py", 12), Frame("metrics", "train.py", 30)]
    start = Frame("run", f"{library}/threading.py", 9)
    stacks = [(start,), (torchs, *own, start), (torchs, start)]
    threads = [
        Thread(ThreadStack(at, at, f"Thread-{at}", False, False, frames), 9.0, False)
        for at, frames in enumerate(stacks, 1)
    ]
    found = of_threads(Sight(1, "S", threads))
    assert [one.thread for one in found] == ["train.py:metrics", ""]
    assert [one.op for one in found] == ["all_reduce", "all_reduce"]
