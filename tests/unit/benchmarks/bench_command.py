"""Runs `distdebug bench`, or a measurement below `tests/benchmarks`: as a user would, or only until
it refuses."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.commands.bench import BenchCommand
from distdebug.errors import UsageError
from tests.benchmarks import command_line
from tests.support import runs

ROOT = Path(__file__).parents[3]


def bench_command(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`distdebug bench ARGUMENTS`, which ends by itself."""
    return subprocess.run(
        [str(runs.DISTDEBUG), "bench", *arguments],
        cwd=cwd,
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=250,  # measuring takes a second; the rest is Pythons that start
        check=False,
    )


def refusal(*arguments: str) -> str:
    """The sentence with which `distdebug bench ARGUMENTS` is refused before it starts anything."""
    command = BenchCommand()
    with pytest.raises(UsageError) as refused:
        command.run(command.parser().parse_args(arguments))
    return _one_sentence(refused.value)


def measurement(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.benchmarks.NAME ARGUMENTS`, which ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments],
        cwd=ROOT,
        env=runs.environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def refusal_of(name: str, *arguments: str) -> str:
    """The sentence with which `measurement` is refused before it starts anything."""
    module = importlib.import_module(f"tests.benchmarks.{name}")
    with pytest.raises(UsageError) as refused:
        module.run(command_line.parser(name, module).parse_args(arguments))
    return _one_sentence(refused.value)


def _one_sentence(error: UsageError) -> str:
    sentence = str(error)
    assert "\n" not in sentence
    return sentence
