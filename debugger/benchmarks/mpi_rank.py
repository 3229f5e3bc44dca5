"""A rank below mpiexec: it does what its partner in `mpi` says, until that one is gone.

mpiexec -n SIZE python -m distdebug.benchmarks.mpi_rank SIZE PREFIX

PREFIX and its rank name the socket where its partner waits. The calls are those of `comm_ranks`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from functools import partial
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

import distcore  # noqa: F401 - makes the backend known

from .arguments import MPI_BACKEND
from .comm_figures import timed
from .comm_ranks import MeasuredCall, make


def main() -> None:
    """Obey until "end"; where the partner is gone without, so are all of mpiexec's ranks."""
    size, prefix = sys.argv[1:]
    world = MPI.COMM_WORLD
    with socket.socket(socket.AF_UNIX) as partner:
        partner.connect(f"{prefix}{world.rank}")
        stream = partner.makefile("rw")
        answer: Any = None
        if world.size != int(size):
            library = MPI.Get_library_version()[:40]
            answer = f"mpi4py runs on {library!r}, not on mpiexec's Open MPI"
        call: MeasuredCall | None = None
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
                case ["prepare", op, size_bytes]:
                    if not dist.is_initialized():
                        dist.init_process_group(MPI_BACKEND)
                    call = None  # this memory first
                    call = make(op, size_bytes, world.rank, world.size)
                    answer = call.is_right(dist.group.WORLD)
                case ["turn", times, warm_up]:
                    assert call is not None
                    run = partial(call.run, dist.group.WORLD)
                    world.Barrier()
                    if warm_up:
                        run()
                    answer = timed(run, times)
                case ["end"]:
                    break
