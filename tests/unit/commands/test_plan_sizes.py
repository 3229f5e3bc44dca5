"""The sizes of `distdebug plan --sizes`, and the command line of each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distdebug.commands import plan_sizes
from distdebug.commands.plan import PlanCommand
from distdebug.commands.plan_sizes import Size
from distdebug.errors import UsageError


def test_ranges_and_lists() -> None:
    assert plan_sizes.parse("2..4") == {"ranks": [2, 3, 4]}
    assert plan_sizes.parse("2,4,8") == {"ranks": [2, 4, 8]}
    assert plan_sizes.parse("dp=1..2,tp=1,4..5") == {"dp": [1, 2], "tp": [1, 4, 5]}


@pytest.mark.parametrize("text", ["", "dp=", "dp=0..2", "3..2", "dp=1,dp=2", "1..", "a b=1", "1-4"])
def test_what_is_no_size_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="--sizes"):
        plan_sizes.parse(text)


def test_too_many_sizes() -> None:
    with pytest.raises(UsageError, match="more than 1000 sizes"):
        plan_sizes.parse("dp=1..100,tp=1..100")


def at_script(words: Sequence[str]) -> tuple[list[str], list[str]]:
    at = next((n for n, word in enumerate(words) if word.endswith(".py")), len(words))
    return list(words[:at]), list(words[at:])


@pytest.mark.parametrize("words", [["-n", "2..3"], ["-n2..3"], ["-n=2..3"], ["--sizes=2..3"]])
def test_a_range_of_ranks_may_be_written_in_many_ways(words: list[str]) -> None:
    axes, kept, program = plan_sizes.divide([*words, "--strict", "train.py", "x"], at_script)
    assert (axes, kept, program) == ({"ranks": [2, 3]}, ["--strict"], ["train.py", "x"])


def test_what_stands_behind_the_script_is_the_scripts() -> None:
    axes, kept, program = plan_sizes.divide(["-n", "2", "train.py", "-n", "2..3"], at_script)
    assert (axes, kept, program) == ({}, ["-n", "2"], ["train.py", "-n", "2..3"])


def test_a_command_line_may_be_empty() -> None:
    assert plan_sizes.divide([], at_script) == ({}, [], [])


def test_the_smallest_size_is_planned_first_and_the_script_is_told() -> None:
    axes = plan_sizes.parse("dp=1..2,tp=1,3")
    lines = plan_sizes.command_lines(axes, ["--strict"], ["train.py", "--tp={tp}"])
    assert [(str(size), words) for size, words in lines] == [
        ("dp=1,tp=1 (1 rank)", ["-n", "1", "--strict", "train.py", "--tp=1"]),
        ("dp=2,tp=1 (2 ranks)", ["-n", "2", "--strict", "train.py", "--tp=1"]),
        ("dp=1,tp=3 (3 ranks)", ["-n", "3", "--strict", "train.py", "--tp=3"]),
        ("dp=2,tp=3 (6 ranks)", ["-n", "6", "--strict", "train.py", "--tp=3"]),
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sizes", "dp=1..2,tp=1..2"], "neither dp nor tp"),
        (["--sizes", "2..3", "-n", "4"], "leave -n out"),
        (["--sizes", "2..3", "-n", "4..5"], "say it once"),
        (["--sizes", "two"], "takes ranges"),
    ],
)
def test_what_contradicts_is_one_sentence(words: list[str], sentence: str) -> None:
    command = PlanCommand()
    with pytest.raises(UsageError, match=sentence):
        command.parse(command.parser(), [*words, __file__])


def test_the_conclusion() -> None:
    sizes = [Size({"ranks": number}) for number in (2, 3, 4)]
    assert plan_sizes.conclusion([(one, 0) for one in sizes]) == "all right at 3 sizes"
    codes = zip(sizes, (0, 91, 0), strict=True)
    assert plan_sizes.conclusion([*codes]) == "the smallest size that fails is 3 ranks (of 3 sizes)"
