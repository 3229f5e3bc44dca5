"""Measures what our backend mpi adds to Open MPI itself: the same calls through mpi4py and through
the backend, in turn, on the same memory.

mpiexec -n 2 --bind-to none python -m tests.benchmarks.open_mpi [SIZES]

SIZES are as those of `distdebug bench comm` (4:64M). OMPI_MCA_mpi_yield_when_idle=1 helps on a busy
machine, and NUMPY_MADVISE_HUGEPAGE=0 has numpy's memory as torch's is. Times are medians of rounds,
each of the slowest rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy
import torch
import torch.distributed as dist
from mpi4py import MPI

import distcore  # noqa: F401 - makes the backend known
from distdebug.benchmarks.arguments import read_sizes
from distdebug.benchmarks.comm_figures import (
    OPS,
    PING_PONG,
    elements,
    neighbours,
    size_text,
    timed,
    true_size,
)
from distdebug.benchmarks.comm_ranks import make

ROUNDS = 15
TURN_S = 0.02
NAMES = {
    "all_reduce": "Allreduce",
    "broadcast": "Bcast",
    "all_gather_into_tensor": "Allgather",
    "reduce_scatter_tensor": "Reduce_scatter_block",
    "all_to_all_single": "Alltoall",
    "send_recv": "Sendrecv",
    "barrier": "Barrier",
}
"""The operations' names in mpi4py."""


def through_mpi4py(op: str, source: numpy.ndarray, target: numpy.ndarray) -> Callable[[], object]:
    """Returns MPI's call, which works in place where torch's does."""
    world = MPI.COMM_WORLD
    following, preceding = neighbours(world.rank, world.size)
    ours, theirs = [source, MPI.FLOAT], [target, MPI.FLOAT]
    call = getattr(world, NAMES[op])
    if op == "barrier":
        return partial(call)
    if op == "broadcast":
        return partial(call, theirs, root=0)
    if op == "send_recv":
        return partial(call, ours, following, 0, theirs, preceding)
    return partial(call, MPI.IN_PLACE if target is source else ours, theirs)


def rows(sizes: list[int]) -> Iterator[tuple[str, int, float, float]]:
    """Yields each op and size with the time of MPI and of our backend, in µs."""
    world = MPI.COMM_WORLD
    dist.init_process_group("mpi")
    for op in OPS:
        for size_bytes in sorted({true_size(op, size, world.size) for size in sizes}):
            if op == PING_PONG:
                continue
            count, target_count = elements(op, size_bytes, world.size)
            source = target = numpy.zeros(count, numpy.float32)
            if target_count is not None:
                target = numpy.zeros(target_count, numpy.float32)
            memory = map(torch.from_numpy, (source, target))
            made = make(op, size_bytes, world.rank, world.size, lambda _, of=memory: next(of))
            ways = (through_mpi4py(op, source, target), partial(made.run, dist.group.WORLD))
            times = max(1, int(TURN_S / world.allreduce(timed(ways[1], 3)[0], MPI.MAX)))
            taken: list[list[float]] = [[], []]
            for _ in range(ROUNDS):
                for way, found in zip(ways, taken, strict=True):
                    world.Barrier()
                    found.append(1e6 * world.allreduce(timed(way, times)[0], MPI.MAX))
            yield op, size_bytes, median(taken[0]), median(taken[1])


def main() -> None:
    """The program."""
    sizes = read_sizes((*sys.argv[1:], "4:64M")[0], 16)
    for op, size_bytes, bare_us, ours_us in rows(sizes):
        if MPI.COMM_WORLD.rank == 0:
            where = f"{op:23}{size_text(size_bytes):>9}"
            print(f"{where}{bare_us:12.1f}{ours_us:12.1f}{ours_us - bare_us:+10.1f} µs", flush=True)


if __name__ == "__main__":
    main()
