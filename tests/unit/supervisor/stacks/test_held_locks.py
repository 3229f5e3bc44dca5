"""Who waits for a lock, and who is inside it, is read from stacks and source."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.diagnosis.findings import Finding, RankEvidence
from distdebug.supervisor.stacks.evidence import Evidence, held_lock
from distdebug.supervisor.stacks.stacks import Frame, ThreadStack

SOURCE = """\
def first(group):
    with lock:
        reduce(group)

def second(group):
    with lock:
        reduce(group)

def third(self, group):
    with self.lock:
        reduce(group)
    lock.acquire()

def fourth(group):
    with condition:
        condition.wait()

def fifth():
    with lock:
        with other:
            pass

def sixth():
    with other:
        with lock:
            pass
"""
TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
THREADING = "/usr/lib/python3.11/threading.py"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return str(path)


def thread(*frames: Frame, wait: str = "", name: str = "Thread-1 (f)") -> ThreadStack:
    """Its frames innermost first."""
    return ThreadStack(1, 1, name, False, False, frames, wait)


def inside(file: str, line: int = 3, function: str = "first") -> ThreadStack:
    return thread(Frame("all_reduce", TORCH, 9), Frame(function, file, line))


def waits(file: str, line: int = 6, function: str = "second") -> ThreadStack:
    return thread(Frame(function, file, line), wait="futex_wait_queue")


def test_waiter_and_holder_are_named(file: str) -> None:
    held = held_lock([inside(file), waits(file)])
    assert str(held) == (
        "a thread waits for `lock` at train.py:6 in second, and another one is inside `with lock` "
        "at train.py:3 in first, in all_reduce"
    )


def test_a_lock_that_is_acquired_by_a_call(file: str) -> None:
    held = held_lock([waits(file, 12, "third"), inside(file)])
    assert held is not None
    assert (held.name, held.waiter.line, held.holder.line) == ("lock", 12, 3)


def test_another_lock_another_file_and_nobody_inside(file: str, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(SOURCE)
    assert held_lock([inside(file), waits(file, 10, "third")]) is None  # self.lock
    assert held_lock([inside(str(other)), waits(file)]) is None
    assert held_lock([waits(file), waits(file, 2, "first")]) is None  # both wait
    assert held_lock([waits(file)]) is None
    assert held_lock([inside(file), inside(file, 7, "second")]) is None  # a semaphore; nobody waits


def test_who_waits_for_a_condition_has_let_it_go(file: str) -> None:
    waiting = thread(Frame("wait", THREADING, 300), Frame("fourth", file, 16))
    assert held_lock([waiting, waiting]) is None


def test_a_source_that_cannot_be_read(file: str) -> None:
    stacks = [inside(file), waits(file)]
    Path(file).write_text("with lock: (")
    from distdebug.supervisor.stacks import evidence
    from distdebug.supervisor.stacks.stacks import text_of

    evidence._blocks.cache_clear()
    text_of.cache_clear()
    assert held_lock(stacks) is None


def test_the_finding_names_them(file: str) -> None:
    main = thread(
        Frame("Thread.join", THREADING, 1119), Frame("<module>", file, 17), name="MainThread"
    )
    stacks = {0: [main, inside(file), waits(file)], 1: [main, inside(file), waits(file)]}
    rows = {rank: RankEvidence("waits for a lock") for rank in stacks}
    late = Finding("missing_rank", "suspected", (1,), (0,), ranks=rows, proven=False)
    found = Evidence(stacks).refine(late)
    assert [line.partition(":")[0] for line in found.details] == ["rank 1", "rank 0"]
    site = found.ranks[1].location
    assert site is not None
    assert (site.line, site.function) == (6, "second")  # not where the main thread waits for it
    assert Evidence(stacks).refine(Finding("rank_died", "it", (1,), (0,))).details == ()


def test_of_two_that_wait_for_each_other_the_late_one_stands_for_its_rank(file: str) -> None:
    main = thread(Frame("fifth", file, 20), wait="futex_wait_queue", name="MainThread")
    stacks = {1: [waits(file, 25, "sixth"), main]}
    rows = {1: RankEvidence("waits for a lock")}
    found = Evidence(stacks).refine(
        Finding("missing_rank", "suspected", (1,), (0,), ranks=rows, proven=False)
    )
    site = found.ranks[1].location
    assert site is not None
    assert (site.line, site.function) == (20, "fifth")
    assert "waits for `other` at train.py:20 in fifth" in found.details[0]
