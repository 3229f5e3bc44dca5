"""Measures, in ranks, what `--check replicas` and `--values` add to a training step of a small
transformer: by DDP, FSDP2 and tensor parallel, on torch's own groups and on those with the layer.

python -m distdebug.benchmarks.checked_training REQUEST

REQUEST has `ranks` and `budget_s`, as `forked.program` takes it. Ten steps at a time are made each
way in turn, so that what is looked at once in ten steps is in every figure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from ..rank.install import installed
from .forked import Row, Turns, here, measure, program
from .overhead import make

KINDS = ("DDP", "FSDP2", "TP")
STEPS = 10
WIDTH, HEAD, BLOCKS, TOKENS, BATCH, LENGTH = 128, 32, 2, 256, 8, 64
MOST_ROUNDS = 40
WAYS = {
    "stock": (False, 0, False),
    "run": (True, 0, False),
    "every_tenth": (True, STEPS, False),
    "every": (True, 1, False),
    "values": (True, 0, True),
}
"""By their names in the figures: whether the layer is there, at one in how many steps replicas are
compared, and whether values are recorded."""


class Block(nn.Module):
    """A block of a transformer, whose matrices may be cut by heads and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns activations of the shape of `x`: batch, length, width."""
        normed = self.first(x)
        query, key, value = (
            one(normed).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        heads = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.down(gelu(self.up(self.second(x))))
        return out


def _model(kind: str, group: Any) -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(BLOCKS)]
    model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), *blocks, nn.Linear(WIDTH, TOKENS))
    if kind == "DDP":
        return DistributedDataParallel(model, process_group=group)
    mesh = DeviceMesh.from_group(group, "cpu")
    columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    for block in blocks:
        if kind == "TP":
            parallelize_module(
                block, mesh, {**columns, "out": RowwiseParallel(), "down": RowwiseParallel()}
            )
        else:
            fully_shard(block, mesh=mesh)
    if kind == "FSDP2":
        fully_shard(model, mesh=mesh)
    return model


def _trainer(kind: str, group: Any) -> Callable[[], None]:
    model = _model(kind, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, TOKENS, (BATCH, LENGTH + 1))

    def step() -> None:
        optimizer.zero_grad()
        scores = model(tokens[:, :-1]).flatten(0, 1)
        loss: Any = cross_entropy(scores, tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step


def _rank(kind: str, rank: int, size: int, directory: Path, ends_at: float) -> Iterator[Row]:
    os.environ |= {"DISTDEBUG_CHECK": "replicas", "DISTDEBUG_VALUES": str(STEPS)}
    for name in ("ranks", "stacks"):
        (directory / name).mkdir(exist_ok=True)
    both = make(directory, "gloo", rank, size)
    layer = installed()
    assert layer is not None
    check, values = layer.replicas, layer.values
    assert values is not None
    trainers = {False: _trainer(kind, both.stock), True: _trainer(kind, both.layered)}

    def run(layered: bool, every: int, records: bool) -> None:
        check._off, check._every, values._off = not every, every or 1, not records
        values._arm()
        for _ in range(STEPS):
            trainers[layered]()

    ways = {name: here(partial(run, *way)) for name, way in WAYS.items()}
    turns = Turns(size).measure(ways, ends_at, MOST_ROUNDS)
    if not (list((directory / "ranks").glob("*.replicas")) and values._step >= STEPS):
        raise RuntimeError(f"nothing of {kind} was looked at")
    figures = ("rounds_us", "cpu_us")
    yield {"kind": kind, **{one: {name: turns[name][one] for name in WAYS} for one in figures}}


def _rows(request: dict[str, Any], began: float) -> Generator[Row, None, None]:
    for number, kind in enumerate(KINDS):
        left = began + request["budget_s"] - time.monotonic()
        ends_at = time.monotonic() + left / (len(KINDS) - number)
        yield from measure(partial(_rank, kind), request["ranks"], ends_at)


if __name__ == "__main__":
    program(_rows)


def main() -> None:
    """The program."""
    program(_rows)
