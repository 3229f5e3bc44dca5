"""What a node has injected, in the head's run directory: by the head's clock and its numbers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from distdebug.faults.injected import FaultWatch, Injected, InjectedLog
from distdebug.faults.plan import add, load
from distdebug.faults.spec import parse
from distdebug.nodes.files import InjectedCopies, InjectedSource

KILL, SKIP, DELAY = "kill(rank=1) @ call 3", "skip(rank=2) @ call 4", "delay(rank=3, 1s) @ call 5"
LATER_NS = 7_000 * 10**9
"""What the head adds to this machine's monotonic clock: it is another's to it."""


class Two:
    """A node with a plan, and the head with another one."""

    def __init__(self, tmp_path: Path, plan: list[str], heads: list[str]) -> None:
        self.node, self.head = tmp_path / "node", tmp_path / "head"
        for folder, texts in ((self.node, plan), (self.head, heads)):
            folder.mkdir()
            if texts:
                add(folder, [parse(text) for text in texts])
        self.source, self.copies = InjectedSource(self.node), InjectedCopies(self.head)

    def happens(self, fault: int, rank: int) -> None:
        InjectedLog(self.node, rank).add(fault, f"call of rank {rank}")

    def tell(self) -> list[Injected]:
        message = self.source.next()
        if message is not None:
            self.copies.apply(message.data, LATER_NS)
        return FaultWatch(self.head).look()

    def heads_plan(self) -> list[str]:
        found = load(self.head)
        return [one.text for one in found.faults] if found is not None else []


def test_what_has_happened_is_told_once(tmp_path: Path) -> None:
    two = Two(tmp_path, [KILL], [KILL])
    assert two.tell() == []
    two.happens(0, 1)
    (one,) = two.tell()
    assert (one.fault, one.rank, one.where) == (0, 1, "call of rank 1")
    assert abs(one.time_ns - (time.monotonic_ns() + LATER_NS)) < 60 * 10**9
    assert two.source.next() is None
    two.happens(0, 1)
    assert len(two.tell()) == 2


def test_the_heads_numbers_count_and_a_fault_that_it_has_not_is_added(tmp_path: Path) -> None:
    two = Two(tmp_path, [KILL, SKIP, DELAY], [DELAY, KILL])
    two.happens(1, 2)
    two.happens(2, 3)
    assert [(one.fault, one.rank) for one in two.tell()] == [(2, 2), (0, 3)]
    assert two.heads_plan() == [DELAY, KILL, SKIP]


def test_a_head_without_a_plan_takes_the_nodes(tmp_path: Path) -> None:
    """The program asked for it on that node alone (`distdebug.inject`)."""
    two = Two(tmp_path, [SKIP], [])
    two.tell()
    assert two.heads_plan() == [SKIP]


def test_after_a_broken_connection_nothing_is_told_twice(tmp_path: Path) -> None:
    two = Two(tmp_path, [KILL, SKIP], [])
    two.happens(0, 1)
    two.tell()
    two.happens(1, 2)
    two.source.next()  # lost on the way
    two.source.anew()
    assert [(one.fault, one.rank) for one in two.tell()] == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"plan": [[0, "boom(rank=1)"]], "first": 0, "rows": []},
        {"plan": [[0, KILL]], "first": 0, "rows": [{"fault": 4, "time_ns": 1}]},
        {"plan": [[0, KILL]], "first": 0, "rows": [{"fault": 0, "time_ns": 1, "rank": "x"}]},
        {"plan": [[0, KILL]], "first": 0, "rows": [{"fault": 0, "time_ns": 1, "more": 1}]},
        {"plan": [[0, KILL]] * 20_000, "first": 0, "rows": []},
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, data: dict[str, object]) -> None:
    two = Two(tmp_path, [], [])
    with pytest.raises((ValueError, TypeError, KeyError)):
        two.copies.apply(data, 0)
    assert FaultWatch(two.head).look() == []
