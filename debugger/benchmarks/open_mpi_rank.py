"""A rank of Open MPI's: it does what its partner in `open_mpi` says, until that one is gone.

mpiexec -n SIZE python -m distdebug.benchmarks.open_mpi_rank SIZE PREFIX

PREFIX and its rank name the socket where its partner waits. The calls are those of `comm_calls`, on
buffers of the same layout. It imports torch only where our own backend is measured: eight imports
take long.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
from mpi4py import MPI

from .comm_layout import layout, neighbours

OURS = "mpi"


class Buffers:
    """The buffers that both ways work on: where memory lies makes up to a fifth of a large call."""

    def __init__(self, op: str, size_bytes: int) -> None:
        world = MPI.COMM_WORLD
        plan = layout(op, size_bytes, world.rank, world.size)
        self.made_for = op, size_bytes
        self.expected = numpy.array(plan.expected, numpy.float32)
        self.source = numpy.empty(plan.source, numpy.float32)
        self.target = self.source
        if plan.target is not None:
            self.target = numpy.empty(plan.target, numpy.float32)


class Call:
    """An operation, as `comm_calls.Call` is."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self.run = _bind(buffers.made_for[0], buffers.source, buffers.target)

    def is_right(self) -> bool:
        """Run it once with numbers that tell; the buffers are zeros afterwards."""
        buffers = self._buffers
        buffers.target.fill(-1)
        buffers.source.fill(MPI.COMM_WORLD.rank + 1)
        self.run()
        parts = buffers.target.reshape(len(buffers.expected), -1)
        right = bool((parts == buffers.expected[:, None]).all())
        buffers.source.fill(0)
        return right

    def turn(self, times: int, warm_up: bool) -> tuple[float, float]:
        """Measures as `turns.here` does."""
        return _turn(self.run, times, warm_up)


class OurCall:
    """The same through our backend, on torch's tensors."""

    def __init__(self, buffers: Buffers) -> None:
        import torch
        import torch.distributed as dist

        import distcore  # noqa: F401 - makes the backend known

        from . import comm_calls

        if not dist.is_initialized():
            dist.init_process_group(OURS)
        world = MPI.COMM_WORLD
        memory = iter((buffers.source, buffers.target))
        self._call = comm_calls.make(
            *buffers.made_for,
            world.rank,
            world.size,
            lambda _count: torch.from_numpy(next(memory)),
        )
        self._run = partial(self._call.run, dist.group.WORLD)

    def is_right(self) -> bool:
        """Checks as `Call.is_right` does."""
        import torch.distributed as dist

        return self._call.is_right(dist.group.WORLD)

    def turn(self, times: int, warm_up: bool) -> tuple[float, float]:
        """Measures as `Call.turn` does."""
        return _turn(self._run, times, warm_up)


def _turn(run: Callable[[], object], times: int, warm_up: bool) -> tuple[float, float]:
    MPI.COMM_WORLD.Barrier()
    if warm_up:
        run()
    cpu_began, began = time.process_time(), time.perf_counter()
    for _ in range(times):
        run()
    spent, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return spent / times, cpu / times


def _bind(op: str, source: Any, target: Any) -> Callable[[], object]:
    """Returns MPI's call, which works in place where torch's does."""
    world = MPI.COMM_WORLD
    following, preceding = neighbours(world.rank, world.size)
    ours, theirs = [source, MPI.FLOAT], [target, MPI.FLOAT]
    match op:
        case "all_reduce":
            return partial(world.Allreduce, MPI.IN_PLACE, theirs)
        case "broadcast":
            return partial(world.Bcast, theirs, root=0)
        case "all_gather_into_tensor":
            return partial(world.Allgather, ours, theirs)
        case "reduce_scatter_tensor":
            return partial(world.Reduce_scatter_block, ours, theirs)
        case "all_to_all_single":
            return partial(world.Alltoall, ours, theirs)
        case "send_recv":
            return partial(world.Sendrecv, ours, following, 0, theirs, preceding)
        case _:
            return world.Barrier


def main() -> None:
    """Obey until "end"; where the partner is gone without, so is all of Open MPI."""
    size, prefix = sys.argv[1:]
    world = MPI.COMM_WORLD
    with socket.socket(socket.AF_UNIX) as partner:
        partner.connect(f"{prefix}{world.rank}")
        stream = partner.makefile("rw")
        problem = None
        if world.size != int(size):
            problem = (
                f"mpi4py runs on {MPI.Get_library_version()[:40]!r}, not on mpiexec's Open MPI"
            )
        answer: Any = problem
        calls: dict[str, Call | OurCall] = {}
        buffers: Buffers | None = None
        while True:
            try:
                stream.write(json.dumps(answer) + "\n")
                stream.flush()
                line = stream.readline()
            except OSError:
                line = ""
            if not line:
                os._exit(1)  # no MPI_Finalize, which would wait for the others
            match json.loads(line):
                case ["prepare", way, op, size_bytes]:
                    if buffers is None or buffers.made_for != (op, size_bytes):
                        calls.clear()
                        buffers = None  # this memory first
                        buffers = Buffers(op, size_bytes)
                    call = calls[way] = (OurCall if way == OURS else Call)(buffers)
                    answer = call.is_right()
                case ["turn", way, times, warm_up]:
                    answer = calls[way].turn(times, warm_up)
                case ["end"]:
                    break
