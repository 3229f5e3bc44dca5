"""One connection to a peer: what is sent, what is received, and the memory that both share.

The two halves do what can be done now and say whether they are through. Waiting is the mesh's part.
"""

from __future__ import annotations

import socket

from .frames import Ended
from .incoming import Incoming
from .outgoing import Outgoing
from .shared_memory import Inbox, Outbox


class Link:
    """The connection to `peer` (its rank in the group), whose global rank is `global_rank`;
    `own_rank` is this one's."""

    def __init__(
        self,
        connection: socket.socket,
        peer: int,
        global_rank: int,
        own_rank: int,
        memory: tuple[Outbox, Inbox] | None = None,
        checked: bool = False,
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._memory = memory or ()
        self.descriptor = connection.fileno()
        self.peer = peer
        self.global_rank = global_rank
        outbox, inbox = memory if memory is not None else (None, None)
        self.outgoing = outgoing = Outgoing(connection, outbox, checked)
        self.incoming = incoming = Incoming(
            connection, inbox, own_rank, global_rank, outgoing.credit, outgoing.control
        )
        # The hot path's four, without a call in between.
        self.send, self.push = outgoing.send, outgoing.push
        self.expect, self.pull = incoming.expect, incoming.pull

    @property
    def ended(self) -> Ended | None:
        """How the connection ended, if it did."""
        return self.incoming.ended

    @property
    def wants_to_write(self) -> bool:
        """Whether more could be sent if the socket took it (not: if the peer freed a slot)."""
        return self.outgoing.wants_to_write

    @property
    def progress(self) -> str:
        """How much of the expected message is here."""
        total = self.incoming.expected_bytes
        if not total:
            return f"rank {self.global_rank} sent nothing"
        return f"rank {self.global_rank} sent {self.incoming.received_bytes} of {total} bytes"

    def close(self) -> None:
        self._connection.close()
        for memory in self._memory:
            memory.close()
        self._memory = ()
