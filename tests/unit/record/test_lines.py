"""Logs of the places of calls: packed as surprises, and replayed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from distdebug.record.lines import PackedLines, place_at
from distdebug.record.snapshot import CallSite, Place
from tests.support.lines_of_calls import places


def at(*lines: int, file: str = "/home/a/project/train.py", function: str = "step") -> Place:
    return Place(tuple(CallSite(file, line, function) for line in lines))


A, B, C, D = (at(line) for line in (10, 20, 30, 40))


def test_places_are_equal_wherever_the_program_lies() -> None:
    elsewhere = at(10, file="/scratch/job7/project/train.py")
    assert elsewhere == A
    assert hash(elsewhere) == hash(A)
    assert elsewhere.key == A.key
    others = [B, at(10, 20), at(10, file="/home/a/other/train.py"), at(10, function="main")]
    assert len({A, *others}) == 1 + len(others)


def check(calls: Sequence[Place | None], first: int = 0) -> list[int]:
    """Packs and replays the calls. Returns the sequence numbers of the surprises."""
    log = PackedLines(enumerate(calls, first))
    end = first + len(calls)
    assert list(places(log, end)) == list(calls)
    assert [place_at(log.surprises, seq) for seq in range(first, end, 7)] == list(calls[::7])
    assert list(places(log, end - 3)) == list(calls[:-3])
    again = PackedLines(enumerate(calls, first))
    assert (log.surprises, log.mark) == (again.surprises, again.mark)
    return [one.seq for one in log.surprises]


@pytest.mark.parametrize(
    ("step", "most"),
    [
        ([A], 1),
        ([A, B], 3),
        ([*[A] * 148, B], 10),
        ([B, C, C, C, D], 8),
        ([*[A, B] * 12, C], 9),
        ([*[*[A] * 3, *[B, C] * 5] * 7, D], 24),
    ],
)
def test_a_loop_is_a_few_surprises_however_long_it_runs(step: list[Place], most: int) -> None:
    steps = 100_000 // len(step)
    found = check([D, *step * steps, C, A])
    assert len(found) <= most + 3
    assert all(seq < 5 * len(step) + 5 for seq in found[:-2])


def test_a_loop_that_is_left_now_and_then_is_a_few_surprises_each_time() -> None:
    epoch = [*[A, A, B] * 100, *[C, D] * 10]
    found = check(epoch * 100)
    assert len(found) < 20, found


@pytest.mark.parametrize("slip", ["skipped", "repeated", "swapped"])
def test_one_call_that_is_out_of_line_is_in_the_log(slip: str) -> None:
    usual = [A, B, C] * 2000
    seen = {"skipped": [C, A], "repeated": [B, B, C], "swapped": [C, B, A]}[slip]
    found = check([*usual[:4993], *seen, *usual[4996:]])
    assert found[:4] == [0, 1, 2, 3]
    assert found[4] == 4993 + (slip == "repeated")
    assert 5 <= len(found) <= 12


def test_any_sequence_is_replayed_and_equal_ones_have_equal_marks() -> None:
    chance = random.Random(7)
    for _ in range(200):
        calls = [chance.choice([A, B, C, None]) for _ in range(chance.randrange(60))]
        first = chance.randrange(5)
        check(calls, first)
        if calls:
            log = PackedLines(enumerate(calls, first))
            assert log.surprises[0].seq == first
            other = PackedLines(enumerate([*calls[:-1], D], first))
            assert other.mark != log.mark


def test_a_mark_stays_while_the_calls_are_as_expected() -> None:
    calls = [A, B] * 10
    assert len({PackedLines(enumerate(calls[:count])).mark for count in range(3, 20)}) == 1
