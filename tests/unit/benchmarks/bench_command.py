"""Runs `distdebug bench`: as a user would, or only until it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from debugger.commands.bench import BenchCommand
from debugger.errors import UsageError
from tests.support import runs


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
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence
