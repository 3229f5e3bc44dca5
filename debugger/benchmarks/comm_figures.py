"""The figures that `distdebug bench comm` reports, by the definitions of nccl-tests.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. The size of a call is
that of the larger of a rank's two buffers: of the output for all_gather_into_tensor, of the input
for reduce_scatter_tensor and all_to_all_single. The algorithm bandwidth is size over time; times
the factor of the operation it is the bus bandwidth, which can be compared with what the hardware
does, whatever the number of ranks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

BASELINE = "gloo"


def baseline(backends: Sequence[str]) -> str:
    """The backend that the others are compared with: gloo, or the last where gloo is missing."""
    return BASELINE if BASELINE in backends else backends[-1]


def speedup(base: Sequence[float], taken: Sequence[float]) -> float:
    """The median of the rounds' baseline time over time: how many times as fast."""
    return statistics.median(theirs / ours for theirs, ours in zip(base, taken, strict=True))


def summarise(row: dict[str, Any], backends: Sequence[str]) -> dict[str, Any]:
    """The figures of one row from what the ranks measured.

    `row`: op, ranks, size_bytes (0 for barrier) and backends: for each name `executions` (in a
    round), `rounds_us` and `cpu_us` (for one execution; one number per round). Time is the median
    round.
    """
    base = row["backends"][baseline(backends)]["rounds_us"]
    figures = {}
    for name in backends:
        taken = row["backends"][name]
        time_us = statistics.median(taken["rounds_us"])
        algbw = row["size_bytes"] / time_us / 1000 if row["size_bytes"] else None
        figures[name] = {
            "time_us": time_us,
            "algbw_gb_s": algbw,
            "busbw_gb_s": None if algbw is None else algbw * OPS[row["op"]].moved(row["ranks"]),
            "speedup": speedup(base, taken["rounds_us"]),
            "cpu_us": statistics.median(taken["cpu_us"]),
            "executions": taken["executions"],
            "rounds_us": taken["rounds_us"],
        }
    where = {key: row[key] for key in ("op", "ranks", "size_bytes")}
    return {**where, "rounds": len(base), "backends": figures}


def heading(backends: Sequence[str]) -> Iterator[str]:
    """The two lines above the table's rows."""
    base = baseline(backends)
    above, below = "", f"{'op':23}{'ranks':>5}{'size':>9}{'rounds':>8}"
    for name in backends:
        columns = f"{'time µs':>12}{'algbw':>8}{'busbw':>8}{'cpu µs':>11}"
        if name != base:
            columns += f"{'vs ' + base:>12}"
        below += columns
        above += f"{name:>12}".ljust(len(columns))
    yield f"{'(bandwidths in GB/s)':45}{above}".rstrip()
    yield below


def line(row: dict[str, Any]) -> str:
    """Returns a row of the table, from `summarise`."""
    size = size_text(row["size_bytes"]) if row["size_bytes"] else "-"
    text = f"{row['op']:23}{row['ranks']:>5}{size:>9}{row['rounds']:>8}"
    base = baseline(list(row["backends"]))
    for name, figures in row["backends"].items():
        text += f"{figures['time_us']:12.1f}"
        for key in ("algbw_gb_s", "busbw_gb_s"):
            gb_s = figures[key]
            fine = gb_s is not None and 0.001 <= gb_s < 0.1
            text += f"{'-':>8}" if gb_s is None else f"{gb_s:>8.2g}" if fine else f"{gb_s:>8.2f}"
        text += f"{figures['cpu_us']:11.1f}"
        if name != base:
            text += f"{figures['speedup']:11.2f}x"
    return text


def size_text(size_bytes: int) -> str:
    """Short and exact enough: "64 KiB"."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.4g} {unit}"
    return f"{size_bytes} B"


ELEMENT_BYTES = 4
WAKE_UP, COPY = "wake_up", "copy"
"""What a ping-pong is compared with: a sleeping process woken, and the data copied, each way."""
PING_PONG = "ping_pong"
"""Rank 0 sends to rank 1, which sends it back; so do 2 and 3, and so on. The last of an odd number
of ranks does nothing."""


@dataclass(frozen=True)
class MeasuredOp:
    """An operation that is measured: its name in torch, and the buffers of a rank, either of which
    may be the rank's `share` of the size; without a `target` it works in place.

    When rank r's source is filled with r + 1, the target's equal parts hold `expected(rank, ranks)`
    afterwards. `moved(ranks)`: its bus bandwidth over its algorithm bandwidth.
    """

    name: str
    expected: Callable[[int, int], list[float]]
    source: str = "whole"
    target: str | None = None
    moved: Callable[[int], float] = lambda _ranks: 1.0


def _total(_rank: int, ranks: int) -> list[float]:
    return [ranks * (ranks + 1) / 2]


def _each(_rank: int, ranks: int) -> list[float]:
    return [number + 1.0 for number in range(ranks)]


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


OPS = {
    op.name: op
    for op in (
        MeasuredOp("all_reduce", _total, moved=lambda ranks: 2 * _others(ranks)),
        MeasuredOp("broadcast", lambda _rank, _ranks: [1.0]),
        MeasuredOp("all_gather_into_tensor", _each, "share", "whole", _others),
        MeasuredOp("reduce_scatter_tensor", _total, "whole", "share", _others),
        MeasuredOp("all_to_all_single", _each, "whole", "whole", _others),
        MeasuredOp(
            "send_recv",
            lambda rank, ranks: [neighbours(rank, ranks)[1] + 1.0],
            target="whole",
        ),
        MeasuredOp(
            PING_PONG,
            lambda rank, ranks: [rank - rank % 2 + 1.0 if rank ^ 1 < ranks else -1.0],
            target="whole",
        ),
        MeasuredOp("barrier", lambda _rank, _ranks: [0.0]),
    )
}
"""The one table of what `bench comm` measures, whoever carries it; without torch."""


def true_size(op: str, size_bytes: int, ranks: int) -> int:
    """Returns what a call of about `size_bytes` moves, in float32 as nccl-tests counts, rounded up
    to a size that all ranks share evenly where each has its share; 0 for a barrier."""
    if op == "barrier":
        return 0
    unit = ELEMENT_BYTES * (ranks if OPS[op].moved is _others else 1)
    return max(1, -(-size_bytes // unit)) * unit


def elements(op: str, size_bytes: int, ranks: int) -> tuple[int, int | None]:
    """The elements of a rank's source and target. `size_bytes` comes from `true_size`."""
    counts = {"whole": size_bytes // ELEMENT_BYTES, "share": size_bytes // ELEMENT_BYTES // ranks}
    row = OPS[op]
    return counts[row.source], None if row.target is None else counts[row.target]


def timed(
    run: Callable[[], object], times: int, finish: Callable[[], object] = lambda: None
) -> tuple[float, float, list[float]]:
    """Measures `times` runs in a row, as a `forked.Way` does; `finish` waits for what they leave to
    a GPU."""
    cpu_began, began = time.process_time(), time.perf_counter()
    ends = [began]
    for _ in range(times):
        run()
        ends.append(time.perf_counter())
    finish()
    spent, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return spent / times, cpu / times, [end - start for start, end in pairwise(ends)]


def neighbours(rank: int, ranks: int) -> tuple[int, int]:
    """Returns whom `rank` sends to and receives from in `send_recv`: a ring, as in nccl-tests'
    sendrecv."""
    return (rank + 1) % ranks, (rank - 1) % ranks
