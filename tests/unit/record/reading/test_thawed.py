"""Records that are made quickly are those that are made as ever."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from distdebug.record.layout import Activity
from distdebug.record.reading.reader import thawed
from distdebug.record.snapshot import Call, Group, Process, Rank, Wait


@pytest.mark.parametrize("frozen", [Rank, Group, Wait, Call])
def test_they_have_the_same_fields(frozen: type) -> None:
    names = [one.name for one in fields(frozen)]
    assert [one.name for one in fields(thawed(frozen))] == names


def test_one_that_is_complete_is_frozen_and_equal() -> None:
    made = thawed(Wait)(1, Activity.IN_CALL, 7, since_ns=5, call=9, site=None)
    made.__class__ = Wait
    assert made == Wait(1, Activity.IN_CALL, 7, since_ns=5, call=9, site=None)
    assert hash(replace(made, detail=())) == hash(replace(made, detail=()))  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        made.since_ns = 6  # type: ignore[misc]


def test_what_is_left_out_is_as_ever_and_of_each_its_own() -> None:
    twin = thawed(Rank)
    one, other = (twin(rank, 2, 7, Process(alive=True)) for rank in range(2))
    one.__class__ = other.__class__ = Rank
    assert one == Rank(0, 2, 7, Process(alive=True))
    assert one.groups is not other.groups
