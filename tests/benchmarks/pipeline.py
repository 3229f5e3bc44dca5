"""The steps a second of a pipeline on tcp and on gloo, in turns.

python -m tests.benchmarks.pipeline [--budget SECONDS]

Four ranks, a stage each, and torch's Schedule1F1B with activations of 1 MiB, as float32. The
stages compute little, so that the messages count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from distdebug.benchmarks.comm_figures import speedup
from distdebug.benchmarks.comm_ranks import joined
from distdebug.benchmarks.forked import Turns, here, measure

RANKS, MICROBATCHES = 4, 8
ROWS, WIDTH = 4096, 64
BACKENDS = ("tcp", "gloo")
BAR = 1.3


def _step(rank: int, group: Any) -> Any:
    """Returns a function that makes one step of the pipeline: forward and backward."""
    torch.manual_seed(rank)
    stage = PipelineStage(
        torch.nn.Linear(WIDTH, WIDTH), rank, RANKS, torch.device("cpu"), group=group
    )
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    whole = torch.ones(MICROBATCHES * ROWS, WIDTH)
    if rank == 0:
        return partial(schedule.step, whole)
    if rank == RANKS - 1:
        return partial(schedule.step, target=whole)
    return schedule.step


def _rows(rank: int, size: int, directory: Path, ends_at: float) -> Iterator[dict[str, Any]]:
    with joined(BACKENDS, rank, size, directory) as groups:
        ways = {name: here(_step(rank, group)) for name, group in groups.items()}
        yield Turns(size).measure(ways, ends_at, most_rounds=101)


def main() -> None:
    """Measures, and prints a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS")
    budget_s = parser.parse_args().budget
    torch.set_num_threads(1)
    (row,) = measure(_rows, RANKS, time.monotonic() + budget_s)
    rounds = {name: row[name]["rounds_us"] for name in BACKENDS}
    rates = ", ".join(f"{name} {1e6 / statistics.median(rounds[name]):.1f}" for name in BACKENDS)
    ratio = speedup(rounds["gloo"], rounds["tcp"])
    count = len(rounds["tcp"])
    print(f"steps a second: {rates}; tcp / gloo {ratio:.2f} in {count} rounds (bar: {BAR})")


if __name__ == "__main__":
    main()
