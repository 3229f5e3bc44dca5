"""What a training step of a small transformer under DistributedDataParallel takes, by backend.

python -m tests.benchmarks.ddp_ranks REQUEST

REQUEST, as `forked.program` takes it: backends, models, ranks (numbers of them) and budget_s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distdebug.benchmarks.comm_ranks import joined
from distdebug.benchmarks.forked import Row, Turns, here, measure, program

ALONE = "alone"
"""The same step without communication: what the ranks' own work takes, all of them at it."""
MOST_ROUNDS = 100
VOCABULARY = 1000


@dataclass(frozen=True)
class Shape:
    """A language model of `layers` encoder layers, and a rank's batch: `sequences` of `tokens`."""

    width: int
    layers: int
    sequences: int
    tokens: int


SHAPES = {
    # 2.6 MB of gradients and 8 Gflop: all_reduce is a few percent of the step.
    "computing": Shape(width=128, layers=2, sequences=16, tokens=128),
    # 55 MB of gradients and 0.7 Gflop: the step is mostly all_reduce and the optimizer.
    "communicating": Shape(width=512, layers=4, sequences=1, tokens=8),
}


class Model(nn.Module):
    """Embedding, encoder and head. Takes token numbers (sequences, tokens), gives the loss of
    guessing each one again."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        layer = nn.TransformerEncoderLayer(
            shape.width, 4, 4 * shape.width, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.head = nn.Linear(shape.width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        guesses = self.head(self.encoder(self.embedding(tokens)))
        return nn.functional.cross_entropy(guesses.flatten(0, 1), tokens.flatten())


def _model(shape: Shape) -> Model:
    torch.manual_seed(0)
    return Model(shape)


def _gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def _step(model: nn.Module, tokens: torch.Tensor) -> Callable[[], None]:
    """Forward, backward and optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(tokens).backward()
        optimizer.step()

    return step


def _rows(
    asked: dict[str, Any], rank: int, size: int, directory: Path, ends_at: float
) -> Iterator[Row]:
    """The rows of one rank: one for each model."""
    with joined(asked["backends"], rank, size, directory) as groups:
        turns = Turns(size)
        for index, name in enumerate(asked["models"]):
            shape = SHAPES[name]
            torch.manual_seed(1 + rank)
            tokens = torch.randint(VOCABULARY, (shape.sequences, shape.tokens))
            alone = _model(shape)
            alone(tokens).backward()
            mean = _gradients(alone)
            dist.all_reduce(mean)
            mean /= size
            steps = {ALONE: _step(alone, tokens)}
            for backend, group in groups.items():
                model = DistributedDataParallel(_model(shape), process_group=group)
                steps[backend] = _step(model, tokens)
                steps[backend]()
                if not torch.allclose(_gradients(model), mean, rtol=1e-3, atol=1e-6):
                    raise RuntimeError(f"{backend} gives wrong gradients for the {name} model")
            ways = {way: here(step) for way, step in steps.items()}
            now = turns.now()
            until = now + max(0.0, ends_at - now) / (len(asked["models"]) - index)
            yield {
                "model": name,
                "ranks": size,
                "gradient_bytes": mean.numel() * mean.element_size(),
                "ways": turns.measure(ways, until, MOST_ROUNDS),
            }


def _all_rows(asked: dict[str, Any], began: float) -> Generator[Row, None, None]:
    ends_at = began + asked["budget_s"]
    _step(_model(Shape(4, 1, 1, 1)), torch.zeros(1, 1))  # imports much, here once for all ranks
    for index, size in enumerate(asked["ranks"]):
        now = time.monotonic()
        until = now + max(0.0, ends_at - now) / (len(asked["ranks"]) - index)
        yield from measure(partial(_rows, asked), size, until)


if __name__ == "__main__":
    program(_all_rows)
