"""Which handles a rank puts on record as never waited for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from distdebug.rank.group import outstanding
from distdebug.rank.group.outstanding import UnwaitedWork
from distdebug.record.notes import UnwaitedWorkNote
from distdebug.record.ops import OP_CODES


class Handle:
    pass


class Rank:
    """Stands for the recorder of a rank, whose calls are all made at line 3."""

    def __init__(self) -> None:
        self.writer = self
        self.ops: dict[int, str] = {}
        self.notes: list[tuple[str, int, bool]] = []

    def call(self, op: str) -> Handle:
        """A call that never says it is complete."""
        number = len(self.ops)
        self.ops[number] = op
        handle: Any = Handle()
        work = SimpleNamespace(is_completed=lambda: False)
        outstanding.watch(handle, number, work)
        return handle

    def call_at(self, number: int) -> tuple[int, int]:
        return OP_CODES[self.ops[number]], 3

    def group_of(self, number: int) -> tuple[int, bool]:
        return 7, self.ops[number] in ("send", "recv")

    def function_of(self, _site: int) -> tuple[str, str]:
        return "train.py", "step"

    def note(self, note: UnwaitedWorkNote, _message: str, _site: int) -> None:
        self.notes.append((note.op, note.count, note.kept))


@pytest.fixture
def rank() -> Iterator[Rank]:
    outstanding.forget()
    yield Rank()
    outstanding.forget()


@pytest.fixture
def unwaited(rank: Rank) -> UnwaitedWork:
    recorder: Any = rank
    return UnwaitedWork(recorder)


def test_kept_to_the_end(rank: Rank, unwaited: UnwaitedWork) -> None:
    """A message may have arrived: its handle does not tell."""
    kept = [rank.call("send"), rank.call("all_reduce"), rank.call("recv")]
    unwaited.last_report(ended_well=True)
    assert rank.notes == [("all_reduce", 1, True)]
    assert len(kept) == 3


def test_dropped(rank: Rank, unwaited: UnwaitedWork) -> None:
    for op in ("send", "send", "all_reduce"):
        handle = rank.call(op)
        del handle
    unwaited.report()
    assert sorted(rank.notes) == [("all_reduce", 1, False), ("send", 2, False)]


def test_a_barrier_completes_what_was_dropped_before(rank: Rank, unwaited: UnwaitedWork) -> None:
    """On groups whose barrier waits for all calls before it; what is dropped later counts."""
    outstanding.barriers[7] = {}
    for op in ("all_reduce", "send", "broadcast"):
        handle = rank.call(op)
        del handle
    unwaited.report()
    assert rank.notes == [("send", 1, False)]
    outstanding.barriers[7] = {("train.py", "another"): 4, ("train.py", "step"): 3}
    rank.ops[3] = "barrier"
    handle = rank.call("all_reduce")
    del handle
    unwaited.report()
    assert len(rank.notes) == 1
    unwaited.report(over=True)
    assert rank.notes[1:] == [("all_reduce", 1, False)]


def test_what_nobody_need_wait_for(rank: Rank, unwaited: UnwaitedWork) -> None:
    handle = rank.call("all_reduce")
    vars(handle)["_number"] = 0
    outstanding.keep(handle)
    del handle
    unwaited.last_report(ended_well=True)
    assert rank.notes == []
