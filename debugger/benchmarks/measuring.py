"""Compares ways to do one thing in one process: they take turns, so that drift hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

STOCK = "stock"
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Way:
    """A way to do it: `run` is timed; `prepare` runs before each turn and is not."""

    run: Callable[[], object]
    prepare: Callable[[], object]


def compare(
    ways: Mapping[str, Way],
    rounds: int,
    times: int,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, dict[str, float]]:
    """The cost of each way, in µs for one execution: the median round, by how much it exceeds
    stock's (median of the rounds' differences), and the same for the fastest round, which is what
    remains on a machine that others keep busy. `STOCK` must be one of the ways.

    In each round every way is executed `times` times in a row. Who begins rotates with the rounds,
    the same on every rank, so that the ways may communicate. For what does not wait,
    `time.thread_time_ns` as the clock leaves out what other processes took of the core.
    """
    names = list(ways)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for index in range(-_WARM_UP, rounds):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            ways[name].prepare()
            way = ways[name].run
            began = clock()
            for _ in range(times):
                way()
            spent_us = (clock() - began) / times / 1000
            if index >= 0:
                taken[name].append(spent_us)
    costs = {}
    for name in names:
        pairs = zip(taken[name], taken[STOCK], strict=True)
        costs[name] = {
            "median_us": statistics.median(taken[name]),
            "added_us": statistics.median(ours - stock for ours, stock in pairs),
            "best_us": min(taken[name]),
            "best_added_us": min(taken[name]) - min(taken[STOCK]),
        }
    return costs
