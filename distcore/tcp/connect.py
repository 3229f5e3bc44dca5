"""Connects the ranks of a group: the rendezvous, the networks of its collectives and messages."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from ..base.store import KeyValueStore
from ..bootstrap.rendezvous import FREE_LANE, Rendezvous
from ..engine.session import Session
from ..transports.faults import injection
from ..transports.messages.mailbox import Mailbox
from ..transports.socket_mesh.mesh import Mesh

_LANE = 0


def connect(
    store: KeyValueStore,
    name: str,
    ranks: Sequence[int],
    rank: int,
    timeout_s: float,
    *,
    transport: str = "auto",
    share_memory: bool = True,
    checked: bool = False,
    algorithms: str = "",
    aside: bool = False,
) -> Session:
    """The session of group `name`, which all its ranks connect at the same time.

    `ranks`: global ranks by group rank; `rank`: this one's group rank. `transport`: see
    `Rendezvous`; `share_memory`: where it leads to ranks of one host over UNIX sockets, data goes
    through memory that they share. `checked`: a checksum with every frame. `algorithms`: what
    must be the same on all ranks. `aside`: it is no group of the program's. Raises RendezvousError
    when some do not come within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    faults = injection.links(ranks, rank, name, aside, lambda: rendezvous.check_aborted())
    if faults is not None:
        transport, share_memory, checked = "tcp", False, True
    rendezvous = Rendezvous(
        store,
        name,
        rank,
        len(ranks),
        timeout_s,
        transport=transport,
        algorithms=algorithms,
        ranks=ranks,
    )

    def meet(peer: int, until: float) -> socket.socket:
        return rendezvous.connect(peer, _LANE, until)

    mesh: Mesh | None = None
    try:
        # Here, where all ranks are: later, the first call would have to wait for ranks that are
        # not in it, and nobody would notice the loss of one that was never called.
        mesh = Mesh(
            name,
            ranks,
            rank,
            meet if faults is None else faults.connect(meet, _LANE),
            deadline=deadline,
            checked=checked,
            share_memory=share_memory,
        )
        mailbox = Mailbox(
            name,
            ranks,
            rank,
            rendezvous.dial if faults is None else faults.connect(rendezvous.dial, FREE_LANE),
            mesh.descriptors,
            checked=checked,
            calling=rendezvous.is_calling,
        )
    except BaseException:
        if mesh is not None:
            mesh.close()
        rendezvous.close()
        raise
    accept = mailbox.accept
    rendezvous.on_call(accept if faults is None else faults.accept(accept, FREE_LANE))
    injection.connected(aside)
    return Session(name, ranks, rank, rendezvous, mesh, mailbox)
