"""Which handles a rank puts on record as never waited for."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from debugger.rank.group import outstanding
from debugger.rank.process import unwaited_work
from debugger.record.signature import OP_CODES


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

    def note(self, _kind: str, _message: str, _site: int, **data: Any) -> None:
        self.notes.append((data["op"], data["count"], data["kept"]))


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    outstanding.forget()
    for name in ("_counts", "_noted"):
        monkeypatch.setattr(unwaited_work, name, {})
    yield Rank()
    outstanding.forget()


def test_kept_to_the_end(rank: Rank) -> None:
    """A message may have arrived: its handle does not tell."""
    kept = [rank.call("send"), rank.call("all_reduce"), rank.call("recv")]
    recorder: Any = rank
    unwaited_work.last_report(recorder)
    assert rank.notes == [("all_reduce", 1, True)]
    assert len(kept) == 3


def test_dropped(rank: Rank) -> None:
    for op in ("send", "send", "all_reduce"):
        handle = rank.call(op)
        del handle
    recorder: Any = rank
    unwaited_work.report(recorder)
    assert sorted(rank.notes) == [("all_reduce", 1, False), ("send", 2, False)]
