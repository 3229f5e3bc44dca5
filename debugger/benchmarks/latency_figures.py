"""The figures that `distdebug bench comm --latency` reports: half of a ping-pong's time, as OSU's
osu_latency defines it, beside what the machine itself takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import comm_figures
from .comm_figures import COPY, WAKE_UP, baseline, size_text


def summarise(row: dict[str, Any], backends: Sequence[str]) -> dict[str, Any]:
    """The figures of one row from what the ranks measured: see `comm_figures.summarise`, and one
    way's `p50_us`, `p99_us` and `of_limit`: how much of the median time one wake-up and one copy of
    the data take. Ranks that spin are not woken: then that may be more than 1."""
    summary = comm_figures.summarise(row, backends)
    wake_up_us, copy_us = row[WAKE_UP]["p50_us"] / 2, row[COPY]["p50_us"] / 2
    for name, figures in summary["backends"].items():
        for key in ("p50_us", "p99_us"):
            figures[key] = row["backends"][name][key] / 2
        figures["of_limit"] = (wake_up_us + copy_us) / figures["p50_us"]
    copy_gb_s = row["size_bytes"] / copy_us / 1000
    return {**summary, "wake_up_us": wake_up_us, "copy_us": copy_us, "copy_gb_s": copy_gb_s}


def heading(backends: Sequence[str]) -> Iterator[str]:
    """The two lines above the table's rows."""
    base = baseline(backends)
    above, below = f"{'one way, µs':14}{'machine':>32}", f"{'ranks':>5}{'size':>9}{'rounds':>8}"
    below += f"{'wake-up':>8}{'copy':>8}{'GB/s':>8}"
    for name in backends:
        columns = f"{'p50':>12}{'p99':>11}{'of limit':>10}"
        if name != base:
            columns += f"{'vs ' + base:>12}"
        below += columns
        above += f"{name:>12}".ljust(len(columns))
    yield above.rstrip()
    yield below


def line(row: dict[str, Any]) -> str:
    """Returns a row of the table, from `summarise`."""
    text = f"{row['ranks']:>5}{size_text(row['size_bytes']):>9}{row['rounds']:>8}"
    text += f"{row['wake_up_us']:8.1f}{row['copy_us']:8.1f}{row['copy_gb_s']:8.2f}"
    base = baseline(list(row["backends"]))
    for name, figures in row["backends"].items():
        text += f"{figures['p50_us']:12.1f}{figures['p99_us']:11.1f}{figures['of_limit']:10.0%}"
        if name != base:
            text += f"{row['backends'][base]['p50_us'] / figures['p50_us']:11.2f}x"
    return text
