"""A rank of Open MPI's: it does what its partner in `open_mpi` says, until that one is gone.

mpiexec -n SIZE python -m distdebug.benchmarks.open_mpi_rank SIZE PREFIX

PREFIX and its rank name the socket where its partner waits. The calls are those of `comm_ranks`, on
buffers of the same layout. It imports torch only where our own backend is measured: eight imports
take long.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
from mpi4py import MPI

from .arguments import OUR_MPI
from .comm_figures import OPS, PING_PONG, elements, neighbours, timed

NAMES = {
    "all_reduce": "Allreduce",
    "broadcast": "Bcast",
    "all_gather_into_tensor": "Allgather",
    "reduce_scatter_tensor": "Reduce_scatter_block",
    "all_to_all_single": "Alltoall",
    "send_recv": "Sendrecv",
    "ping_pong": "Send",
    "barrier": "Barrier",
}
"""The operations' names in mpi4py."""


class Buffers:
    """The buffers that both ways work on: where memory lies makes up to a fifth of a large call."""

    def __init__(self, op: str, size_bytes: int) -> None:
        world = MPI.COMM_WORLD
        count, target_count = elements(op, size_bytes, world.size)
        self.made_for = op, size_bytes
        self._expected = numpy.array(OPS[op].expected(world.rank, world.size), numpy.float32)
        self.source = self.target = numpy.empty(count, numpy.float32)
        if target_count is not None:
            self.target = numpy.empty(target_count, numpy.float32)

    def are_right_after(self, run: Callable[[], object]) -> bool:
        """Run it once with numbers that tell; the buffers are zeros afterwards."""
        self.target.fill(-1)
        self.source.fill(MPI.COMM_WORLD.rank + 1)
        run()
        parts = self.target.reshape(len(self._expected), -1)
        right = bool((parts == self._expected[:, None]).all())
        self.source.fill(0)
        return right


def through_mpi4py(buffers: Buffers) -> Callable[[], object]:
    """Returns MPI's call, which works in place where torch's does."""
    world = MPI.COMM_WORLD
    following, preceding = neighbours(world.rank, world.size)
    ours, theirs = [buffers.source, MPI.FLOAT], [buffers.target, MPI.FLOAT]
    op = buffers.made_for[0]
    call = getattr(world, NAMES[op])
    if op == "barrier":
        return partial(call)
    if op == "broadcast":
        return partial(call, theirs, root=0)
    if op == PING_PONG:
        other = world.rank ^ 1
        steps = [partial(call, ours, other), partial(world.Recv, theirs, other)]
        if world.rank > other:
            steps = [steps[1], partial(call, theirs, other)]
        return lambda: [step() for step in steps if other < world.size]
    if op == "send_recv":
        return partial(call, ours, following, 0, theirs, preceding)
    in_place = buffers.target is buffers.source
    return partial(call, MPI.IN_PLACE if in_place else ours, theirs)


def through_our_backend(buffers: Buffers) -> Callable[[], object]:
    """Returns the same call on torch's tensors."""
    import torch
    import torch.distributed as dist

    import distcore  # noqa: F401 - makes the backend known

    from . import comm_ranks

    if not dist.is_initialized():
        dist.init_process_group(OUR_MPI)
    world = MPI.COMM_WORLD
    memory = iter((buffers.source, buffers.target))
    call = comm_ranks.make(
        *buffers.made_for, world.rank, world.size, lambda _count: torch.from_numpy(next(memory))
    )
    return partial(call.run, dist.group.WORLD)


def main() -> None:
    """Obey until "end"; where the partner is gone without, so is all of Open MPI."""
    size, prefix = sys.argv[1:]
    world = MPI.COMM_WORLD
    with socket.socket(socket.AF_UNIX) as partner:
        partner.connect(f"{prefix}{world.rank}")
        stream = partner.makefile("rw")
        answer: Any = None
        if world.size != int(size):
            library = MPI.Get_library_version()[:40]
            answer = f"mpi4py runs on {library!r}, not on mpiexec's Open MPI"
        calls: dict[str, Callable[[], object]] = {}
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
                    bind = through_our_backend if way == OUR_MPI else through_mpi4py
                    calls[way] = bind(buffers)
                    answer = buffers.are_right_after(calls[way])
                case ["turn", way, times, warm_up]:
                    world.Barrier()
                    if warm_up:
                        calls[way]()
                    answer = timed(calls[way], times)
                case ["end"]:
                    break
