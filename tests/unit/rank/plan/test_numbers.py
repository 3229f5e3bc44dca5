"""Numbers that are not known behave as numbers, and tell when something is decided by them."""

from __future__ import annotations

import copy
import json
from types import FrameType
from typing import Any

import numpy as np
import pytest

from distdebug.rank.plan.numbers import (
    Decisions,
    UndecidedFloat,
    UndecidedInteger,
    known_as,
    unknown_in,
)


class Told(Decisions):
    """Keeps what it was told."""

    def __init__(self, way: str = "likely") -> None:
        nobody: Any = None
        super().__init__(way, nobody, nobody)
        self.heard: list[str] = []

    def depends(self, what: str, frame: FrameType | None = None) -> None:
        del frame
        self.heard.append(what)


def test_they_add_up_and_print_and_stay_unknown() -> None:
    told = Told()
    loss = known_as(1.5, told)
    mean = (loss + 2 * loss - 0.5) / 2
    assert isinstance(mean, UndecidedFloat)
    assert f"{mean:.2f} {loss} {-loss!r}" == "2.00 1.5 -1.5"
    assert isinstance(sum([loss, loss]), UndecidedFloat)
    assert json.dumps({"loss": loss}) == '{"loss": 1.5}'
    assert told.heard == []


@pytest.mark.parametrize(
    "decide",
    [
        lambda x: x < 2,
        lambda x: x == 1.5,
        lambda x: bool(x),
        lambda x: int(x),
        lambda x: hash(x),
        lambda x: max(x, 1.0),
        lambda x: sorted([x, 1.0]),
        lambda x: float(x),
        lambda x: x.is_integer(),
        lambda x: copy.deepcopy([x])[0] < 2,
        lambda x: divmod(x, 2)[0] < 2,
        lambda x: np.isnan(x),
        lambda x: np.exp(x) < 2,
        lambda x: np.add(x, np.ones(2)),
    ],
)
def test_a_decision_is_told(decide: object) -> None:
    told = Told()
    assert callable(decide)
    decide(known_as(1.5, told))
    assert told.heard


@pytest.mark.parametrize(
    "decide", [lambda n: range(n), lambda n: [1, 2, 3][n], lambda n: n > 1, lambda n: "a" * n]
)
def test_an_integer_is_never_an_index_silently(decide: object) -> None:
    told = Told()
    count = known_as(2, told)
    assert isinstance(count, UndecidedInteger)
    assert callable(decide)
    decide(count)
    assert told.heard


def test_an_integer_says_that_it_is_one_and_does_what_others_do() -> None:
    """Programs ask before they write a number down; and none of this decides anything."""
    told = Told()
    count, flag = known_as(7, told), known_as(True, told)
    assert isinstance(count, int)
    assert isinstance(flag, bool)
    assert not isinstance(count, float)
    assert [str(one) for one in divmod(count, 2)] == ["3", "1"]
    assert f"{~count} {copy.copy(count):d} {count / np.float64(2)}" == "-8 7 3.5"
    assert count.as_integer_ratio() == (7, 1)
    assert told.heard == []
    assert count.bit_length() == 3
    assert told.heard == ["bit_length of a value that is not known"]


def test_the_way_may_be_chosen() -> None:
    assert not known_as(1.5, Told("false")) < 2
    assert known_as(1.5, Told("true")) > 2
    assert known_as(1.5, Told()) < 2


def test_the_likely_way_does_not_fail() -> None:
    loss = known_as(1.5, Told())
    assert loss == 7.0
    assert not loss == 1.5  # noqa: SIM201 - a test of `not`
    if loss < 2:
        raise AssertionError("the way on which the program fails was taken")


def test_they_are_found_in_lists() -> None:
    told = Told()
    assert unknown_in([1, [2, known_as(3.0, told)]]) is told
    assert unknown_in(({"a": 1}, "b")) is None
