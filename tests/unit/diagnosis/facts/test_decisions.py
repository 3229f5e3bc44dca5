"""Which branch decided, of two made-up sequences."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distdebug.diagnosis.facts.decisions import CallPath, Parted, parted
from distdebug.record.snapshot import ITEM, NO_MORE, OFF_AND_ON, Branch, GroupKey, Interval, Taken

WORLD: GroupKey = ("0", 0)


def taken(text: str) -> Taken:
    """`main:3=True`, `main:3:for=item`, `main:3:for=end`."""
    place, outcome = text.split("=")
    function, line, *kind = place.split(":")
    source = f"{kind[0]} x in y:" if kind else f"line {line}"
    outcome = {"item": ITEM, "end": NO_MORE}.get(outcome, outcome)
    return Taken(Branch("train.py", int(line), function, source), outcome, None)


class Made:
    """Each text has the branches up to a call."""

    on_record = True

    def __init__(self, *texts: str) -> None:
        self._all = [
            Interval(WORLD, seq, 0, True, tuple(map(taken, text.split())))
            for seq, text in enumerate(texts)
        ]

    def intervals(self, group: GroupKey, after: int) -> Sequence[Interval] | None:
        return self._all[after + 1 :] if after < len(self._all) else None


def decided(ours: Sequence[str], theirs: Sequence[str], after: int) -> Parted | None:
    return parted(Made(*ours), Made(*theirs), CallPath(WORLD, {"main"}), after)


CASES = {
    "one branch": ("main:1=T", "main:1=F", 1),
    "after turns of a loop that waits": (
        "main:1=T main:1=T main:1=F main:5=T",
        "main:1=T main:1=F main:5=F",
        5,
    ),
    "a loop that ends earlier": (
        "main:1:for=item main:1:for=end",
        "main:1:for=item main:1:for=item",
        1,
    ),
    "a value was chosen before": ("main:1=T main:2=T", "main:1=F main:2=F", 2),
    "behind it another function": ("main:1=T log:9=T", "main:1=F log:9=F", 1),
    "one goes on": ("main:1=T main:2=F main:3=T", "main:1=F", 1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_branch_that_decided(name: str) -> None:
    ours, theirs, line = CASES[name]
    for left, right in ((ours, theirs), (theirs, ours)):
        found = decided([left], [right], -1)
        assert found is not None
        assert found.branch.line == line
        assert found.ours is not None
        assert found.theirs is not None


def test_an_exception_that_one_side_has_caught() -> None:
    for flip in (False, True):
        rows = (["main:1=T main:4=raised:ValueError main:5=T"], ["main:1=T"])
        found = decided(*(rows[::-1] if flip else rows), -1)
        assert found is not None
        assert found.branch.line == 4
        assert [found.ours is None, found.theirs is None] == [flip, not flip]


def test_a_loop_of_as_many_turns_with_a_call_less() -> None:
    turn = "main:1:for=item main:2=F"
    skipped = "main:1:for=item main:2=T main:1:for=item main:2=F"
    found = decided([turn, skipped, turn, "main:1:for=end"], [turn] * 4, 2)
    assert found is not None
    assert (found.branch.line, found.after) == (2, 0)


def test_nothing_that_differs_and_nothing_on_record() -> None:
    assert decided(["main:1=T"], ["main:1=T"], -1) is None
    assert decided(["main:1=T"], ["main:1=F"], 7) is None


def test_a_branch_that_was_not_followed_on_one_side_says_nothing() -> None:
    ours = f"main:1=T main:1=T main:7=T main:1={OFF_AND_ON}"
    found = decided([ours], ["main:1=F main:7=F"], -1)
    assert found is not None
    assert found.branch.line == 7
