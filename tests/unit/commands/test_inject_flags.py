"""The flags of fault injection make one plan; what is printed of a drawn one gives it again."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.commands import inject_flags
from distdebug.errors import UsageError
from distdebug.faults.plan import Plan


def plan(*flags: str, world_size: int | None = 3) -> Plan | None:
    parser = argparse.ArgumentParser()
    inject_flags.add(parser.add_argument_group("distdebug"))
    return inject_flags.plan(parser.parse_args(flags), world_size)


def test_without_a_flag_there_is_no_plan() -> None:
    assert plan() is None


def test_flags_add_up(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('seed = 7\n[[fault]]\nspec = "kill(rank=1)"\n')
    flags = ["--inject", "skip(rank=2)", "--inject-file", str(path), "--inject", "nan(rank=0)"]
    made = plan(*flags)
    assert made is not None
    assert made.seed == 7
    assert [(one.number, one.action) for one in made.faults] == [
        (0, "kill"),
        (1, "skip"),
        (2, "nan"),
    ]
    seeded = plan(*flags, "--seed", "9")
    assert seeded is not None
    assert seeded == replace(made, seed=9)


def test_a_drawn_plan_is_repeated_by_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = plan("--inject-random", "12", "--seed", "5", "--inject-backend", "tcp")
    assert drawn is not None
    assert len(drawn.faults) == 12
    printed = capsys.readouterr().err
    start, flags = printed.rstrip("\n").split(": --inject ", 1)
    assert start == "distdebug: seed 5"
    again = plan(*shlex.split(f"--inject {flags}"), "--seed", "5")
    assert again == drawn


def test_a_new_seed_is_drawn_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = plan("--inject-random", "3")
    assert drawn is not None
    assert f"seed {drawn.seed}: " in capsys.readouterr().err
    assert plan("--inject-random", "3", "--seed", str(drawn.seed)) == drawn


def test_what_is_wrong_with_a_fault_is_shown_below_the_sentence() -> None:
    with pytest.raises(UsageError, match=r"^--inject: there is no rank 3") as caught:
        plan("--inject", "kill(rank=3)")
    assert caught.value.below == ("  kill(rank=3)", "            ^")
