"""Compares the figures that `distdebug bench` has written with what they may be at most.

    distdebug bench overhead --json overhead.json
    python -m tests.benchmarks.bars overhead.json

Bars in µs were set on a machine where stock's all_reduce takes `REFERENCE_US` on the fake backend.
Another machine is as much faster or slower at the layer's Python as at torch's, so that those of
calls are also compared as a share of that call in the same run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SYNCHRONOUS_US = 3.0
ASYNCHRONOUS_US = 4.0
"""Of a call that is waited for by its handle: torch's `send` is one, too."""
REFERENCE_US = 3.1
STEP_PERCENT = 3.0
DETAIL_SHARE = 0.2
"""Of what torch's DETAIL adds, for small tensors."""
DETAIL_LARGE_PERCENT = 10.0
START_RATIO = 1.08
IMPORT_S = 0.1
MODULES = 70
REPLICAS_PERCENT = {"every_tenth": 3.0, "every": 15.0, "values": 5.0}

Row = tuple[str, float, float]
"""What is compared, the figure, and its bar."""


def overhead(found: dict[str, Any]) -> Iterator[Row]:
    """What `bench overhead` has measured, by its fastest rounds."""
    fake = [one for one in found["calls"] if one["backend"] == "fake"]
    (stock_us,) = (one["stock"]["best_us"] for one in fake if one["op"] == "all_reduce")
    for one in fake:
        if not one["op"].endswith("async"):
            bar_us = ASYNCHRONOUS_US if one["entries"] > 1 else SYNCHRONOUS_US
            added_us = one["info"]["best_added_us"]
            yield f"{one['op']}, µs", added_us, bar_us
            yield f"{one['op']}, in all_reduces", added_us / stock_us, bar_us / REFERENCE_US
    yield "training step, %", found["ddp_step"]["info_percent"]["fastest"], STEP_PERCENT
    for one in found["detail"]:
        added_us, where = one["detail"]["added_us"], f"DETAIL on {one['world_size']} ranks"
        if one["size_bytes"] < 1024:
            yield f"{where}, of torch's", added_us / one["torch_detail"]["added_us"], DETAIL_SHARE
        else:
            percent = 100 * added_us / one["stock"]["median_us"]
            yield f"{where}, {one['size_bytes']} B, %", percent, DETAIL_LARGE_PERCENT


def start(found: dict[str, Any]) -> Iterator[Row]:
    """What `bench start` has measured."""
    yield "wall, times torchrun's", found["wall_s"]["ratio"], START_RATIO
    yield "CPU, times torchrun's", found["cpu_s"]["ratio"], START_RATIO
    yield "import, s more", found["import_s"]["added"], IMPORT_S
    yield "modules", found["modules"]["distdebug"], MODULES


def replicas(found: dict[str, Any]) -> Iterator[Row]:
    """What `bench replicas` has measured."""
    for row in found["rows"]:
        for name, bar in REPLICAS_PERCENT.items():
            yield f"{row['kind']}, {name}, % of CPU time", row["percent"][name]["cpu_us"], bar


def main(files: list[str]) -> None:
    """The program."""
    kinds = {"bench": overhead, "start": start, "replicas": replicas}
    for file in files:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        for what, figure, bar in kinds[found["schema"].split("/")[0].rpartition(".")[2]](found):
            print(f"{what:44}{figure:10.2f}   bar: {bar:.2f}{'' if figure <= bar else '   over'}")


if __name__ == "__main__":
    main(sys.argv[1:])
