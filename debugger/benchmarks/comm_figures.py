"""The figures that `distdebug bench comm` reports, by the definitions of nccl-tests.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. The size of a call is
that of the larger of a rank's two buffers: of the output for all_gather_into_tensor, of the input
for reduce_scatter_tensor and all_to_all_single. The algorithm bandwidth is size over time; times
the factor of the operation it is the bus bandwidth, which can be compared with what the hardware
does, whatever the number of ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

BASELINE = "gloo"


def bus_factor(op: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in {"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"}:
        return (ranks - 1) / ranks
    return 1.0


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
        factor = bus_factor(row["op"], row["ranks"])
        figures[name] = {
            "time_us": time_us,
            "algbw_gb_s": algbw,
            "busbw_gb_s": None if algbw is None else algbw * factor,
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
            text += f"{'-':>8}" if figures[key] is None else f"{_bandwidth(figures[key]):>8}"
        text += f"{figures['cpu_us']:11.1f}"
        if name != base:
            text += f"{figures['speedup']:11.2f}x"
    return text


def _bandwidth(gb_s: float) -> str:
    return f"{gb_s:.2g}" if 0.001 <= gb_s < 0.1 else f"{gb_s:.2f}"


def size_text(size_bytes: int) -> str:
    """Short and exact enough: "64 KiB"."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):.4g} {unit}"
    return f"{size_bytes} B"
