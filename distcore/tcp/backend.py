"""The backend "tcp": ranks connected by TCP, and by shared memory where they have one host.

Environment, read when a group is made: DISTCORE_TRANSPORT is auto (the default), tcp or shm;
DISTCORE_CHECKSUM=1 protects every frame by a checksum; DISTCORE_ALGORITHM: see
`algorithms.choice_from`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from ..algorithms.choice import ALGORITHM_VARIABLE, choice_from
from ..groups.process_group import CoreGroup, Origin
from .engine import TcpEngine, connect

TRANSPORT_VARIABLE = "DISTCORE_TRANSPORT"
CHECKSUM_VARIABLE = "DISTCORE_CHECKSUM"


@dataclass(frozen=True)
class TcpBackend:
    """See `distcore.backend.Backend`."""

    name: str = "tcp"
    devices: tuple[str, ...] = ("cpu",)

    def unavailable(self) -> str | None:
        return None

    def create(self, origin: Origin, group_class: type[CoreGroup]) -> CoreGroup:
        """Connect the ranks. Raises RendezvousError when some do not come, ValueError for a wrong
        environment."""
        transport = os.environ.get(TRANSPORT_VARIABLE, "auto")
        choice = choice_from(os.environ.get(ALGORITHM_VARIABLE, ""))
        session = connect(
            origin.store,
            origin.name,
            origin.ranks,
            origin.rank,
            origin.timeout.total_seconds(),
            transport=transport,
            share_memory=transport != "tcp",
            checked=os.environ.get(CHECKSUM_VARIABLE, "") == "1",
            algorithms=choice.wished,
        )
        engine = TcpEngine(session, choice)
        return group_class(replace(origin, token=session.token), engine, self.create)
