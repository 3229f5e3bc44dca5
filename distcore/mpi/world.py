"""The ranks that mpiexec started: who this one is among them, and a store that they share."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..base.linux import this_host
from ..bootstrap.addresses import address_towards, interface_address, is_loopback
from ..errors import RendezvousError
from ..limits import CALL_PAUSE_S
from ..torch_private import dist
from . import library

_TOLD_BYTES = 512
_LAUNCHED = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI
    "PMIX_RANK",  # Open MPI's PRRTE, srun --mpi=pmix
    "PMI_SIZE",  # MPICH, Intel MPI, srun --mpi=pmi2
    "PMI_RANK",
    "PALS_RANKID",  # Cray MPICH
    "MV2_COMM_WORLD_SIZE",  # MVAPICH
    "MPI_LOCALNRANKS",  # MPICH's Hydra
)
"""Variables that launchers of MPI give to the processes that they start; one of these is enough."""
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class MpiWorld:
    """All ranks, on a communicator that nobody else uses."""

    mpi: Any
    comm: Any

    @property
    def rank(self) -> int:
        return int(self.comm.Get_rank())

    @property
    def size(self) -> int:
        return int(self.comm.Get_size())


_lock = threading.Lock()
_world: MpiWorld | None = None


def join(timeout_s: float) -> MpiWorld:
    """MPI's world. The first call starts MPI, and waits for the others' first calls.

    Raises RuntimeError where MPI cannot be used, RendezvousError when others do not come.
    """
    global _world
    with _lock:
        if _world is None:
            mpi = library.start()
            world = mpi.COMM_WORLD
            comm, request = world.Idup()
            _finish(request, timeout_s, "a communicator of their own")
            comm.Set_errhandler(mpi.ERRORS_RETURN)
            _world = MpiWorld(mpi, comm)
        return _world


def was_launched() -> bool:
    """Whether this process was started by an MPI launcher; or MPI is in use already."""
    return _world is not None or any(name in os.environ for name in _LAUNCHED)


def check_agrees(world: MpiWorld, rank: int, size: int) -> None:
    """Checks that rank and size, as the program or its environment gives them (-1: not at all), are
    those of MPI. ValueError tells both."""
    said = [("rank", rank, world.rank), ("world_size", size, world.size)]
    for name, given, found in said:
        if given not in (-1, None) and given != found:
            raise ValueError(_conflict(world, f"init_process_group was given {name}={given}"))
    for name, _given, found in said:
        variable = name.upper()
        text = os.environ.get(variable, "")
        if text and text != str(found):
            raise ValueError(_conflict(world, f"{variable} is {text} in the environment"))


def _conflict(world: MpiWorld, what: str) -> str:
    if world.size == 1:
        how = "start the ranks with mpiexec -n N, or distdebug run --launcher mpi -n N"
    else:
        how = "leave both out, MPI knows them"
    return f"backend mpi: MPI says this is rank {world.rank} of {world.size}, but {what}: {how}"


def make_store(world: MpiWorld, timeout_s: float) -> Any:
    """A store on rank 0, found through MPI. On loopback where all ranks are on one host. Called by
    all ranks at once; raises RendezvousError."""
    mpi, comm = world.mpi, world.comm
    host = this_host()
    mine = bytearray(hashlib.sha256(repr(host).encode()).digest())
    hosts = bytearray(len(mine) * world.size)
    request = comm.Iallgather([mine, mpi.BYTE], [hosts, mpi.BYTE])
    _finish(request, timeout_s, "who is on which host")
    one_host = bytes(hosts) == bytes(mine) * world.size
    address = bytearray(_TOLD_BYTES)
    store = None
    if world.rank == 0:
        try:
            store, said = _serve(one_host, timeout_s)
        except (OSError, RuntimeError, ValueError) as error:
            said = {"error": str(error)}
        text = json.dumps(said).encode()[:_TOLD_BYTES]
        address[: len(text)] = text
    _finish(comm.Ibcast([address, mpi.BYTE], 0), timeout_s, "the store's address")
    said = json.loads(bytes(address).rstrip(b"\0"))
    if "error" in said:
        raise RendezvousError(f"rank 0 of MPI's world could not open a store: {said['error']}")
    if store is None:
        store = dist.TCPStore(
            said["host"],
            said["port"],
            is_master=False,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    return store


def _serve(one_host: bool, timeout_s: float) -> tuple[Any, dict[str, Any]]:
    address = interface_address() or _LOOPBACK
    if not one_host and address == _LOOPBACK:
        address = address_towards(socket.gethostname()) or _LOOPBACK
        if is_loopback(address):
            raise RendezvousError(
                "the ranks are on several hosts, and this host's name leads to loopback; "
                "set DISTCORE_SOCKET_IFNAME to the interface between the hosts"
            )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(1024)
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            address,
            port,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.fileno(),
        )
    except BaseException:
        listener.close()
        raise
    listener.detach()  # the store's now
    return store, {"host": address, "port": port}


def _finish(request: Any, timeout_s: float, what: str, *kept: Sequence[object]) -> None:
    """Wait for a request, with pauses; RendezvousError when the time is up."""
    deadline = time.monotonic() + timeout_s
    while not request.Test():
        if time.monotonic() >= deadline:
            library.abandon(request, *kept)
            raise RendezvousError(
                f"backend mpi: after {timeout_s:g} s the ranks of MPI's world have not all called "
                f"init_process_group: they have to agree on {what}"
            )
        time.sleep(CALL_PAUSE_S)
