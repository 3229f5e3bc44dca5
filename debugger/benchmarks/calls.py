"""The cost of a call on the fake backend, which does nothing: what is left is torch and the layer.

python -m distdebug.benchmarks.calls DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import groups
from .measuring import compare

ROUNDS = 150
TIMES = 100
ELEMENTS = 16


def _calls() -> dict[str, Callable[[Any], object]]:
    one = torch.ones(ELEMENTS)
    both = torch.zeros(2 * ELEMENTS)
    parts = [torch.zeros(ELEMENTS) for _ in range(2)]
    return {
        "all_reduce": lambda group: dist.all_reduce(one, group=group),
        "all_reduce, async": lambda group: dist.all_reduce(one, group=group, async_op=True),
        "all_reduce, async and wait": lambda group: dist.all_reduce(
            one, group=group, async_op=True
        ).wait(),
        "broadcast": lambda group: dist.broadcast(one, group_src=0, group=group),
        "all_gather": lambda group: dist.all_gather(parts, one, group=group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(both, one, group=group),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(one, both, group=group),
        "barrier": lambda group: dist.barrier(group=group),
        "send": lambda group: dist.send(one, group_dst=1, group=group),
    }


def main() -> None:
    """Measure each call, and print the costs by name."""
    warnings.simplefilter("ignore", FutureWarning)
    both = groups.make(Path(sys.argv[1]), "fake", 0, 2)
    costs = {
        name: compare(both.ways(call), ROUNDS, TIMES, time.thread_time_ns)
        for name, call in _calls().items()
    }
    sys.stdout.write(json.dumps(costs) + "\n")
