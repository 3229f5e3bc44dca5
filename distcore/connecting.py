"""Connects the ranks of a group: the rendezvous, the networks of its collectives and messages."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .key_value_store import KeyValueStore
from .rendezvous import Rendezvous
from .session import Session
from .transports.mailbox import Mailbox
from .transports.mesh import Mesh

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
) -> Session:
    """The session of group `name`, which all its ranks connect at the same time.

    `ranks`: global ranks by group rank; `rank`: this one's group rank. `transport`: see
    `Rendezvous`; `share_memory`: where it leads to ranks of one host over UNIX sockets, data goes
    through memory that they share. `checked`: a checksum with every frame. `algorithms`: what
    must be the same on all ranks. Raises RendezvousError when some do not come within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
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
    mesh: Mesh | None = None
    try:
        # Here, where all ranks are: later, the first call would have to wait for ranks that are
        # not in it, and nobody would notice the loss of one that was never called.
        mesh = Mesh(
            name,
            ranks,
            rank,
            lambda peer, until: rendezvous.connect(peer, _LANE, until),
            deadline=deadline,
            checked=checked,
            share_memory=share_memory,
        )
        mailbox = Mailbox(
            name,
            ranks,
            rank,
            rendezvous.dial,
            mesh.descriptors,
            checked=checked,
            calling=rendezvous.is_calling,
        )
    except BaseException:
        if mesh is not None:
            mesh.close()
        rendezvous.close()
        raise
    rendezvous.on_call(mailbox.accept)
    return Session(name, ranks, rank, rendezvous, mesh, mailbox)
