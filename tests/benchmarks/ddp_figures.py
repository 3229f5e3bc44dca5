"""What `tests.benchmarks.ddp` reports."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from distdebug.benchmarks.comm_figures import baseline, size_text, speedup

ALONE = "alone"
"""The step without communication, in the place of a backend."""


def summarise(row: dict[str, Any], backends: Sequence[str]) -> dict[str, Any]:
    """The figures of one row of `ddp_ranks`: `speedup` is the median of the rounds' baseline time
    over time."""
    base = row["ways"][baseline(backends)]["rounds_us"]
    figures = {}
    for name, taken in row["ways"].items():
        figures[name] = {
            "step_ms": statistics.median(taken["rounds_us"]) / 1000,
            "cpu_ms": statistics.median(taken["cpu_us"]) / 1000,
            "speedup": speedup(base, taken["rounds_us"]),
            "rounds_us": taken["rounds_us"],
        }
    where = {key: row[key] for key in ("model", "ranks", "gradient_bytes")}
    return {**where, "rounds": len(base), "ways": figures}


def heading(backends: Sequence[str]) -> Iterator[str]:
    """The two lines above the table's rows."""
    base = baseline(backends)
    above = f"{'(ms for one step)':45}"
    below = f"{'model':16}{'ranks':>5}{'gradients':>14}{'rounds':>10}"
    for name in (ALONE, *backends):
        columns = f"{'time':>12}{'cpu':>10}"
        if name not in (ALONE, base):
            columns += f"{'vs ' + base:>12}"
        above += f"{name:>12}".ljust(len(columns))
        below += columns
    yield above.rstrip()
    yield below


def line(row: dict[str, Any]) -> str:
    """One of the table's rows, from `summarise`."""
    gradients = size_text(row["gradient_bytes"])
    text = f"{row['model']:16}{row['ranks']:>5}{gradients:>14}{row['rounds']:>10}"
    base = baseline(list(row["ways"]))
    for name, figures in row["ways"].items():
        text += f"{figures['step_ms']:12.1f}{figures['cpu_ms']:10.1f}"
        if name not in (ALONE, base):
            text += f"{figures['speedup']:11.2f}x"
    return text
