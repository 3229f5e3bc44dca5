"""The backend "tcp": ranks connected by TCP, and by shared memory where they have one host.

Environment, read when a group is made: DISTCORE_TRANSPORT is auto (the default), tcp or shm;
DISTCORE_CHECKSUM=1 protects every frame by a checksum; DISTCORE_ALGORITHM: see
`algorithms.choice_from`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from ..algorithms import ALGORITHM_VARIABLE, choice_from
from ..process_group import CoreGroup, Origin
from ..rendezvous import Rendezvous
from ..session import Session
from ..transports.mailbox import Mailbox
from ..transports.mesh import Mesh

TRANSPORT_VARIABLE = "DISTCORE_TRANSPORT"
CHECKSUM_VARIABLE = "DISTCORE_CHECKSUM"
_LANE = 0


@dataclass(frozen=True)
class TcpBackend:
    """See `base.Backend`."""

    name: str = "tcp"
    devices: tuple[str, ...] = ("cpu",)

    def unavailable(self) -> str | None:
        return None

    def create(self, origin: Origin, group_class: type[CoreGroup]) -> CoreGroup:
        """Connect the ranks. Raises RendezvousError when some do not come, ValueError for a wrong
        environment."""
        transport = os.environ.get(TRANSPORT_VARIABLE, "auto")
        choice = choice_from(os.environ.get(ALGORITHM_VARIABLE, ""))
        checked = os.environ.get(CHECKSUM_VARIABLE, "") == "1"
        name, ranks, rank = origin.name, origin.ranks, origin.rank
        timeout_s = origin.timeout.total_seconds()
        deadline = time.monotonic() + timeout_s
        rendezvous = Rendezvous(
            origin.store,
            name,
            rank,
            len(ranks),
            timeout_s,
            transport=transport,
            algorithms=choice.wished,
            ranks=ranks,
        )
        mesh: Mesh | None = None
        try:
            # Here, where all ranks are: later, the first call would have to wait for ranks that
            # are not in it, and nobody would notice the loss of one that was never called.
            mesh = Mesh(
                name,
                ranks,
                rank,
                lambda peer, until: rendezvous.connect(peer, _LANE, until),
                deadline=deadline,
                checked=checked,
                share_memory=transport != "tcp",
            )
            alive = mesh.descriptors
            mailbox = Mailbox(
                name,
                ranks,
                rank,
                rendezvous.dial,
                alive,
                checked=checked,
                calling=rendezvous.is_calling,
            )
        except BaseException:
            if mesh is not None:
                mesh.close()
            rendezvous.close()
            raise
        rendezvous.on_call(mailbox.accept)
        session = Session(name, ranks, rank, rendezvous, mesh, mailbox)
        token = rendezvous.digest.hex()[:16]

        def make_alike(other: Origin) -> CoreGroup:
            return self.create(other, CoreGroup)

        return group_class(replace(origin, token=token), session, make_alike, choice)
