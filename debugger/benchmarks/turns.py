"""Ways to do one thing take turns, on all ranks together, until the time is up.

All decisions (how many executions, how many rounds) are made from numbers that all ranks have
exchanged, so that all of them decide alike. The exchange goes over the default group, gloo, whose
threads sleep while a way is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from .limits import TURN_S, WARM_UP_BELOW_S

Way = Callable[[int, bool], tuple[float, float]]
"""`way(times, warm_up)` does it `times` times in a row, after once more that does not count where
`warm_up`; seconds and this process' CPU seconds (all threads) that one execution took."""
ENOUGH_ROUNDS = 5
"""Before there are so many, shorter turns are taken."""
MOST_EXECUTIONS = 5000


def here(run: Callable[[], None], finish: Callable[[], object] = lambda: None) -> Way:
    """The way that runs in this process; `finish` waits for what it has left to a GPU: on the CPU a
    call is over when it returns."""

    def way(times: int, warm_up: bool) -> tuple[float, float]:
        if warm_up:
            run()  # the ranks leave the barrier one after the other; other caches are warm
            finish()
        cpu_began, began = time.process_time(), time.perf_counter()
        for _ in range(times):
            run()
        finish()
        spent, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        return spent / times, cpu / times

    return way


class Turns:
    """This rank's part. torch's default group has `size` ranks and runs on gloo."""

    def __init__(self, size: int) -> None:
        self._size = size

    def now(self) -> float:
        """The monotonic clock, the same number on every rank."""
        return self._everyones([time.monotonic()])[:, 0].max().item()

    def measure(
        self, ways: Mapping[str, Way], ends_at: float, most_rounds: int
    ) -> dict[str, dict[str, Any]]:
        """Measures for each way `executions` (in a round), `rounds_us` and `cpu_us`: µs for one
        execution, one number per round, of the slowest rank and of the mean rank.

        At least one round is made; done by `ends_at` (monotonic) or after `most_rounds`. Who begins
        rotates with the rounds.
        """
        turn_s = (ends_at - self.now()) / len(ways) / (ENOUGH_ROUNDS + 1)
        turn_s = min(max(turn_s, TURN_S[0]), TURN_S[1])
        one_s = {}  # about how many seconds one execution takes
        for name, way in ways.items():
            count = 1
            one_s[name], _, _ = self._turn(way, count, warm_up=False)
            while one_s[name] * count < turn_s / 4 and count < MOST_EXECUTIONS:
                count = min(max(2 * count, math.ceil(turn_s / 2 / one_s[name])), 50 * count)
                one_s[name], _, _ = self._turn(way, count, warm_up=False)
        times = {name: min(max(1, round(turn_s / one_s[name])), MOST_EXECUTIONS) for name in one_s}
        rounds_us: dict[str, list[float]] = {name: [] for name in ways}
        cpu_us: dict[str, list[float]] = {name: [] for name in ways}
        names = list(ways)
        for index in range(most_rounds):
            for name in names[index % len(names) :] + names[: index % len(names)]:
                warm_up = one_s[name] < WARM_UP_BELOW_S
                seconds, cpu_s, now = self._turn(ways[name], times[name], warm_up)
                rounds_us[name].append(seconds * 1e6)
                cpu_us[name].append(cpu_s * 1e6)
            if index == 0:
                began, round_s = now, sum(times[name] * one_s[name] for name in names)
            else:
                round_s = (now - began) / index
            if now + round_s > ends_at:
                break
        return {
            name: {"executions": times[name], "rounds_us": rounds_us[name], "cpu_us": cpu_us[name]}
            for name in names
        }

    def _turn(self, way: Way, times: int, warm_up: bool) -> tuple[float, float, float]:
        """Seconds for one execution on the slowest rank, CPU seconds for one on the mean rank, and
        the time when it was over."""
        dist.barrier()
        seconds, cpu_s = way(times, warm_up)
        everyones = self._everyones([seconds, cpu_s, time.monotonic()])
        slowest, _, now = everyones.max(dim=0).values.tolist()
        return slowest, everyones[:, 1].mean().item(), now

    def _everyones(self, numbers: list[float]) -> torch.Tensor:
        """A row of `numbers` from each rank."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        gathered = torch.empty(self._size * len(numbers), dtype=torch.float64)
        dist.all_gather_into_tensor(gathered, mine)
        return gathered.view(self._size, -1)
