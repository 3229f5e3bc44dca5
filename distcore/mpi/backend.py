"""The backend "mpi": ranks that mpiexec started, connected by the MPI library that mpi4py finds.

torch of the wheel has no MPI, and treats the name "mpi" in its own way; `mpi.torch_api` has torch
make what is registered here under another name. Environment: DISTCORE_MPI_CUDA=1 or 0 overrules
what the MPI library says of itself about addresses of GPU memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..engine.session import Session
from ..engine.staging import EITHER, MAIN_MEMORY
from ..errors import RendezvousError
from ..groups.process_group import CoreGroup, Origin
from . import library
from .engine import MpiEngine
from .line import MpiLine
from .messages import Messages
from .notices import Notices
from .torch_api import REGISTERED, SHOWN
from .world import MpiWorld, join


@dataclass(frozen=True)
class MpiBackend:
    """See `distcore.backend.Backend`."""

    name: str = REGISTERED
    devices: tuple[str, ...] = ("cpu", "cuda")

    def unavailable(self) -> str | None:
        return library.unavailable()

    def create(self, origin: Origin, group_class: type[CoreGroup]) -> CoreGroup:
        """Connect the ranks. Raises RendezvousError when some do not come."""
        timeout_s = origin.timeout.total_seconds()
        world = join(timeout_s)
        # First through the store, which can tell who does not come: MPI would wait for ever.
        notices = Notices(origin.store, origin.name, origin.ranks, origin.rank, timeout_s)
        comm = _communicator(world, origin, notices)
        messages_comm = comm.Dup()
        for one in (comm, messages_comm):
            one.Set_errhandler(world.mpi.ERRORS_RETURN)
        line = MpiLine(world.mpi, comm, notices)
        most_tag = int(world.comm.Get_attr(world.mpi.TAG_UB))
        messages = Messages(world.mpi, messages_comm, notices, most_tag)
        session = Session(origin.name, origin.ranks, origin.rank, notices, line, messages)
        reach = EITHER if library.query_cuda() else MAIN_MEMORY
        engine = MpiEngine(world.mpi, session, line, reach)
        shown = replace(origin, backend=SHOWN, token=session.token)
        return group_class(shown, engine, self.create)


def _communicator(world: MpiWorld, origin: Origin, notices: Notices) -> Any:
    """Makes a communicator of the group's ranks alone, in the group's order."""
    if max(origin.ranks) >= world.size:
        raise RendezvousError(
            f"group {origin.name!r}: rank {max(origin.ranks)} is not in MPI's world of "
            f"{world.size} ranks"
        )
    mine = origin.ranks[origin.rank]
    if mine != world.rank:
        raise RendezvousError(
            f"group {origin.name!r}: this process is rank {mine} for torch, and "
            f"{world.rank} for MPI"
        )
    everybody = world.comm.Get_group()
    members = everybody.Incl(list(origin.ranks))
    # Only the members take part; the tag keeps groups apart that threads make at the same time.
    tag = int.from_bytes(notices.digest[:2], "little") % 32000
    try:
        return world.comm.Create_group(members, tag)
    finally:
        members.Free()
        everybody.Free()
