"""A rank of `bench comm`: with the others it measures every backend in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import comm_calls, gpu, open_mpi
from .comm_layout import true_size
from .rank_groups import joined
from .turns import Turns, Way, here

MOST_ROUNDS = 15
_UNDER_MPIEXEC = (open_mpi.NAME, open_mpi.OURS)


@dataclass(frozen=True)
class Request:
    """The measurements that are asked for. `sizes` in bytes."""

    backends: Sequence[str]
    ops: Sequence[str]
    sizes: Sequence[int]
    ranks: Sequence[int]
    budget_s: float


@dataclass(frozen=True)
class Cell:
    """A row of the table."""

    op: str
    size_bytes: int

    @property
    def weight(self) -> float:
        """Its share of the time, relative to others'."""
        return 1.0 + self.size_bytes / (1 << 24)


def rows(
    request: Request, rank: int, size: int, directory: Path, ends_at: float
) -> Iterator[dict[str, Any]]:
    """The rows, as `comm_figures.summarise` takes them; done by `ends_at` (monotonic)."""
    torchs = [name for name in request.backends if name not in _UNDER_MPIEXEC]
    place = gpu.place(rank, size) if set(request.backends) <= set(gpu.BACKENDS) else gpu.NOWHERE
    with ExitStack() as stack:
        groups = stack.enter_context(joined(torchs, rank, size, directory))
        mpi = None
        if set(_UNDER_MPIEXEC) & set(request.backends):
            mpi = stack.enter_context(open_mpi.Partner(rank, size, directory))
        turns = Turns(size)
        cells = list(
            dict.fromkeys(
                Cell(op, true_size(op, size_bytes, size))
                for op in request.ops
                for size_bytes in request.sizes
            )
        )
        for index, cell in enumerate(cells):
            share = cell.weight / sum(later.weight for later in cells[index:])
            now = turns.now()
            ways = _ways(request.backends, cell, groups, mpi, rank, size, place)
            measured = turns.measure(ways, now + max(0.0, ends_at - now) * share, MOST_ROUNDS)
            where = {"op": cell.op, "ranks": size, "size_bytes": cell.size_bytes}
            yield {**where, "backends": measured}


def _ways(
    names: Sequence[str],
    cell: Cell,
    groups: dict[str, Any],
    mpi: open_mpi.Partner | None,
    rank: int,
    size: int,
    place: gpu.Place,
) -> dict[str, Way]:
    """The call on every backend, each of which has given right data once."""
    call = comm_calls.make(cell.op, cell.size_bytes, rank, size, place.allocate)
    ways: dict[str, Way] = {}
    for name in names:
        if name in _UNDER_MPIEXEC:
            assert mpi is not None
            right = mpi.prepare(name, cell.op, cell.size_bytes)
            ways[name] = partial(mpi.turn, name)
        else:
            right = call.is_right(groups[name])
            ways[name] = here(partial(call.run, groups[name]), place.finish)
        if not right:
            raise RuntimeError(f"{name} gives wrong data for {cell.op} of {cell.size_bytes} B")
    return ways
