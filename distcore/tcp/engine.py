"""The engine of tcp: our own algorithms, on connections that `connect` makes between ranks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..algorithms import collectives
from ..algorithms.choice import DEFAULT, Chooser
from ..base.reduction import Reduction
from ..bootstrap.rendezvous import FREE_LANE, Rendezvous
from ..engine.base import Body
from ..engine.session import QueuedEngine, Session
from ..engine.staging import MAIN_MEMORY
from ..engine.work import CallWork
from ..transports import faulty
from ..transports.base import Connect
from ..transports.mailbox import Mailbox
from ..transports.mesh import Mesh
from ..transports.shared_memory import new_bells


class TcpEngine(QueuedEngine):
    """See `engine.Engine`."""

    def __init__(self, session: Session, choice: Chooser = DEFAULT) -> None:
        super().__init__("tcp", session, MAIN_MEMORY)
        self._choice = choice

    def all_reduce(self, tensor: Tensor, reduction: Reduction) -> Body:
        return lambda net: collectives.all_reduce(net, tensor, reduction, self._choice)

    def reduce(self, tensor: Tensor, root: int, reduction: Reduction) -> Body:
        return lambda net: collectives.reduce(net, tensor, root, reduction, self._choice)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], reduction: Reduction
    ) -> Body:
        return lambda net: collectives.reduce_scatter(net, output, inputs, reduction, self._choice)

    def broadcast(self, tensor: Tensor, root: int) -> Body:
        return lambda net: collectives.broadcast(net, tensor, root, self._choice)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Body:
        return lambda net: collectives.all_gather(net, outputs, tensor, self._choice)

    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> Body:
        return lambda net: collectives.gather(net, outputs, tensor, root, self._choice)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> Body:
        return lambda net: collectives.scatter(net, output, inputs, root, self._choice)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Body:
        return lambda net: collectives.all_to_all(net, outputs, inputs, self._choice)

    def barrier(self) -> Body:
        return collectives.barrier

    def begin_batch(self) -> None:
        self.session.mailbox().begin_batch()

    def end_batch(self, works: Sequence[Any]) -> CallWork:
        self.session.mailbox().end_batch()
        return super().end_batch(works)


_LANE = 0


def connect(
    store: Any,
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
    faults = faulty.links(ranks, rank, name, aside, lambda: rendezvous.check_aborted())
    if faults is not None:
        transport, share_memory, checked = "tcp", False, True
    rendezvous = Rendezvous(store, name, ranks, rank, timeout_s, transport, algorithms)

    def meet(peer: int, until: float) -> socket.socket:
        return rendezvous.connect(peer, _LANE, until)

    wait_for: Connect = meet
    call: Connect = rendezvous.dial
    if faults is not None:
        wait_for, call = faults.connect(meet, _LANE), faults.connect(call, FREE_LANE)
    mesh: Mesh | None = None
    bells = new_bells()
    try:
        # Here, where all ranks are: later, the first call would have to wait for ranks that are
        # not in it, and nobody would notice the loss of one that was never called.
        mesh = Mesh(
            name,
            ranks,
            rank,
            wait_for,
            deadline=deadline,
            checked=checked,
            share_memory=share_memory,
            bells=() if checked else bells,
        )
        mailbox = Mailbox(
            name,
            ranks,
            rank,
            call,
            mesh.descriptors,
            rendezvous.is_calling,
            checked=checked,
            lanes=mesh.lanes,
            bells=bells,
        )
    except BaseException:
        for descriptor in bells:
            os.close(descriptor)
        if mesh is not None:
            mesh.close()
        rendezvous.close()
        raise
    accept = mailbox.accept
    rendezvous.on_call(accept if faults is None else faults.accept(accept, FREE_LANE))
    faulty.connected(aside)
    return Session(name, ranks, rank, rendezvous, mesh, mailbox)
