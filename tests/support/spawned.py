"""Ranks that are programs of their own: started together, and each must end well."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def spawn(
    program: Path,
    size: int,
    arguments: tuple[str, ...],
    environment: Callable[[int], Mapping[str, str]],
    limit_s: float,
) -> list[str]:
    """What each rank of `program RANK SIZE ARGUMENTS...` printed, each with what `environment`
    adds for it. Raises where one fails or is late; none outlives this."""
    ranks = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(size), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment(rank)},
        )
        for rank in range(size)
    ]
    try:
        printed = [rank.communicate(timeout=limit_s)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    everything = "\n---\n".join(printed)
    assert [rank.returncode for rank in ranks] == [0] * size, f"{program.name}\n{everything}"
    assert all(text.strip() for text in printed), everything
    return printed
