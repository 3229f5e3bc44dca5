"""Slips in random programs are found where they were planted; ranks that mix freely have none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from distdebug.diagnosis.facts.slips import Slip, Slips
from distdebug.record.lines import PackedLines
from distdebug.record.snapshot import CallSite, Place

SEEDS = 60
Lines = list[int]
PLACES: dict[int, Place] = {}


def place(line: int) -> Place:
    return PLACES.setdefault(line, Place((CallSite("/home/user/train.py", line, "step"),)))


def found(ranks: Sequence[Lines]) -> Slip | None:
    logs = {rank: PackedLines(enumerate(map(place, lines))) for rank, lines in enumerate(ranks)}
    return Slips().of("group", logs, {rank: len(lines) for rank, lines in enumerate(ranks)})[1]


def body(random_: random.Random) -> Lines:
    """A step of three lines at least, one of them perhaps in a loop of its own."""
    lines = list(range(10, 10 + random_.randint(3, 6)))
    at = random_.randrange(len(lines))
    return lines[:at] + lines[at : at + 1] * random_.choice([1, 1, 3]) + lines[at + 1 :]


def skipped(lines: Lines, at: int) -> Lines:
    return lines[:at] + lines[at + 1 :]


def repeated(lines: Lines, at: int) -> Lines:
    return lines[: at + 1] + lines[at:]


def swapped(lines: Lines, at: int) -> Lines:
    return [*lines[:at], *lines[at : at + 2][::-1], *lines[at + 2 :]]


@pytest.mark.parametrize("slip", [skipped, repeated, swapped])
@pytest.mark.parametrize("size", [2, 4])
def test_a_planted_slip_is_found(slip: Callable[[Lines, int], Lines], size: int) -> None:
    for seed in range(SEEDS):
        random_ = random.Random(seed)
        lines, steps = body(random_), random_.randint(20, 40)
        odd, step = random_.randrange(size), random_.randint(4, 12)
        at = random_.randrange(len(lines) - 1)
        while lines[at] == lines[at + 1]:
            at = random_.randrange(len(lines) - 1)
        ranks = [lines * steps for _ in range(size)]
        ranks[odd] = lines * step + slip(lines, at) + lines * (steps - step - 1)
        parted = next(i for i, pair in enumerate(zip(*ranks, strict=False)) if len({*pair}) > 1)
        one = found(ranks)
        assert one is not None, seed
        assert (one.seq, one.what, one.strong) == (parted, slip.__name__, True), seed
        assert one.odd == (odd,), seed


def stealing(random_: random.Random) -> Lines:
    return random_.choices(range(10, 10 + 3), k=120)


def phases(random_: random.Random) -> Lines:
    made: Lines = []
    for turn in range(8):
        made += ([10, 11], [12, 13, 14], [15])[turn % 3] * random_.randint(3, 20)
    return made


def tasks(random_: random.Random) -> Lines:
    return [line for task in random_.choices([[10, 11, 12], [13], [14, 15]], k=40) for line in task]


def joins(random_: random.Random) -> Lines:
    made: Lines = []
    for _ in range(3):
        steps = random_.randint(3, 40)
        made += [10, 11] * steps + [20, 21] * (41 - steps) + [30]
    return made


@pytest.mark.parametrize("kind", [stealing, phases, tasks, joins])
def test_ranks_that_mix_freely_do_not_slip(kind: Callable[[random.Random], Lines]) -> None:
    for seed in range(SEEDS):
        random_ = random.Random(seed)
        ranks = [kind(random_) for _ in range(random_.randint(2, 4))]
        for until in (20, 35, 50, 70, 90, 1000):
            one = found([lines[:until] for lines in ranks])
            assert one is None or not one.strong, (seed, until)


def test_long_phases_in_another_order_do_not_slip() -> None:
    ends = [10] * 5 + [11] * 5, [10, 11] * 5
    ranks = [[*ends[0], *first * 10, *second * 10, *ends[1]] for first, second in (
        ([10], [11]), ([10], [11]), ([11], [10]), ([11], [10]),
    )]  # fmt: skip
    one = found(ranks)
    assert one is None or not one.strong


def test_a_slip_behind_a_million_calls_is_found() -> None:
    lines = [10, 11, 12, 12, 13]
    many = 200_000
    log = PackedLines(enumerate(map(place, lines * 40)))
    odd = PackedLines(enumerate(map(place, [*lines * 20, 10, 12, 12, 13, *lines * 19])))
    logs = {0: log, 1: log, 2: odd}
    one = Slips().of("group", logs, dict.fromkeys(logs, many))[1]
    assert one is not None
    assert (one.seq, one.what, one.odd, one.until) == (101, "skipped", (2,), None)


@pytest.mark.parametrize("epochs", [3, 6, 8, 13, 20])
def test_a_batch_less_in_each_epoch_is_found_behind_an_error(epochs: int) -> None:
    usual = [*[10] * 5, 20] * epochs
    one = found([usual, usual, [*[10] * 4, 20] * epochs])
    assert one is not None
    assert (one.seq, one.what, one.odd, one.strong) == (4, "skipped", (2,), False)
    assert one.lines == (place(10),)


def test_in_a_loop_of_two_lines_the_number_of_calls_decides_and_both_readings_are_told() -> None:
    usual = [10, 11] * 40
    longer = found([usual, [*[10, 11] * 3, 11, *[10, 11] * 37]])
    assert longer is not None
    assert (longer.seq, longer.what, longer.lines) == (6, "repeated", (place(11),))
    assert longer.instead == place(10)
    shorter = found([usual, [*[10, 11] * 3, 11, *[10, 11] * 36]])
    assert shorter is not None
    assert (shorter.seq, shorter.what, shorter.lines) == (6, "skipped", (place(10),))
    assert shorter.instead is None


def test_a_line_is_the_same_by_whatever_way_a_rank_comes_to_it() -> None:
    def way(line: int, caller: int) -> Place:
        return Place((*place(line).sites, CallSite("/home/user/train.py", caller, "tick")))

    usual = [way(10, 1), way(11, 2), way(12, 4)]
    odd = [*usual * 10, way(10, 1), way(12, 3), *usual * 13]
    ranks = [usual * 24, usual * 24, odd]
    logs = {rank: PackedLines(enumerate(places)) for rank, places in enumerate(ranks)}
    one = Slips().of("group", logs, {rank: len(places) for rank, places in enumerate(ranks)})[1]
    assert one is not None
    assert (one.seq, one.what, one.lines) == (31, "skipped", (way(11, 2),))
    assert one.at[2] == way(12, 3)


def test_messages_swapped_in_a_branch_of_their_own_are_found() -> None:
    def way(line: int, caller: int) -> Place:
        return Place((*place(line).sites, CallSite("/home/user/train.py", caller, "main")))

    sent = [way(10, 1), way(11, 2)] * 9
    received = (
        [way(20, 3), way(21, 4)] * 4 + [way(21, 5), way(20, 6)] + [way(20, 3), way(21, 4)] * 4
    )
    logs = {rank: PackedLines(enumerate(places)) for rank, places in enumerate((sent, received))}
    one = Slips().of("pair", logs, {0: 18, 1: 18}, messages=True)[1]
    assert one is not None
    assert (one.seq, one.what, one.odd, one.strong) == (8, "swapped", (1,), True)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("parties", [2, 3, 4])
def test_ranks_that_take_turns_do_not_slip(size: int, parties: int) -> None:
    for others in ([], [20], [20, 21]):
        ranks = [
            [line for step in range(60) for line in (10 + ((step + rank) % parties > 0), *others)]
            for rank in range(size)
        ]
        one = found(ranks)
        assert one is None or not one.strong, others


@pytest.mark.parametrize("slip", [skipped, repeated, swapped])
@pytest.mark.parametrize("lines", [[10, 11], [10, 11, 12], [10, 10, 11, 12]])
def test_what_is_told_first_is_right(slip: Callable[[Lines, int], Lines], lines: Lines) -> None:
    if slip is repeated and len(lines) == 2:
        pytest.skip("it looks like the other one skipped")
    at = len(lines) - 2
    odd = [*lines * 10, *slip(lines, at), *lines * 9]
    told = set()
    for until in range(10 * len(lines), 18 * len(lines)):
        one = found([(lines * 20)[:until], (lines * 20)[:until], odd[:until]])
        told |= {one.what} if one is not None and one.strong else set()
    assert told == {slip.__name__}
