"""`distdebug bench start`: its figures, and how many modules of ours a rank loads before its first
group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug import hook
from distdebug.benchmarks import start

MOST_MODULES = 70
"""Before the first group. Who needs more imports it where it is needed."""


@pytest.mark.parametrize("launcher", ["", "torchrun"])
def test_a_process_loads_what_it_uses(launcher: str, tmp_path: Path) -> None:
    """torchrun itself, which is no rank, looks for no garbage in torch at its end, either."""
    for name in ("ranks", "logs", "stacks"):
        (tmp_path / name).mkdir()
    code = (
        f"import gc, runpy; print(runpy.run_path({str(start.PROGRAM)!r})['modules'],"
        "gc.get_freeze_count(), gc.isenabled())"
    )
    rank = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "DISTDEBUG_REDIRECT": "0",
        "DISTDEBUG_ONE_HOST": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**hook.environment(os.environ, tmp_path, launcher), **rank},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    modules, frozen, collects = done.stdout.split()
    least, most = (0, 10) if launcher else (40, MOST_MODULES)
    assert least < int(modules) <= most
    assert (int(frozen) > 100_000, collects) == (bool(launcher), "True")


def test_figures_are_of_pairs() -> None:
    def run(wall_s: float, modules: int) -> start.Run:
        return {"wall_s": wall_s, "cpu_s": 1.0, "import_s": 0.5, "modules": modules}

    rounds = [
        {"torchrun": run(stock, 0), "distdebug": run(ours, 90)}
        for stock, ours in ((1.0, 2.0), (4.0, 4.4), (2.0, 2.4))
    ]
    wall = start.summary(rounds)["wall_s"]
    assert (wall["torchrun"], wall["distdebug"]) == (2.0, 2.4)
    assert (wall["ratio"], wall["added"]) == pytest.approx((1.2, 0.4))
    assert start.summary(rounds)["modules"]["distdebug"] == 90
