"""A connection to a peer: what is sent, what is received, and the memory that both share.

The two halves do what can be done now and say whether they are through. Waiting is the mesh's part.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable

from ...limits import WHY_ENDED_S
from ..frames import BadFrame, Closed
from ..shared_memory import SlotInbox, SlotOutbox
from .incoming import Incoming
from .outgoing import Outgoing

_IN_FLIGHT_BYTES = 512 * 1024
"""The most bytes between two ranks of one host in the kernel. By itself that grows to megabytes,
which have left the processor's cache when the receiver copies them: it takes twice the time."""


class PeerLink:
    """The connection to `peer` (its rank in the group), whose global rank is `global_rank`;
    `own_rank` is this one's."""

    def __init__(
        self,
        connection: socket.socket,
        peer: int,
        global_rank: int,
        own_rank: int,
        memory: tuple[SlotOutbox, SlotInbox] | None = None,
        checked: bool = False,
    ) -> None:
        connection.setblocking(False)
        if _within_host(connection):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_FLIGHT_BYTES)
        self._connection = connection
        self._memory = memory or ()
        self.descriptor = connection.fileno()
        self.watched = select.POLLIN
        """The events that the mesh polls for."""
        self.peer = peer
        self.global_rank = global_rank
        self.ends = (global_rank, own_rank)
        """The global ranks of who sends and who receives here."""
        outbox, inbox = memory if memory is not None else (None, None)
        self.outgoing = outgoing = Outgoing(connection, outbox, checked)
        self.incoming = incoming = Incoming(
            connection, inbox, own_rank, global_rank, outgoing.credit, outgoing.control
        )
        # The hot path's four, without a call in between.
        self.send, self.push = outgoing.send, outgoing.push
        self.expect, self.pull = incoming.expect, incoming.pull

    @property
    def ended(self) -> Closed | None:
        """The reason why the connection ended, if it did."""
        return self.incoming.ended

    @property
    def wants_to_write(self) -> bool:
        """Whether more could be sent if the socket took it (not: if the peer freed a slot)."""
        return self.outgoing.wants_to_write

    @property
    def progress(self) -> str:
        """Text that tells how much of the expected message is here."""
        total = self.incoming.expected_bytes
        if not total:
            return f"rank {self.global_rank} sent nothing"
        return f"rank {self.global_rank} sent {self.incoming.received_bytes} of {total} bytes"

    def close(self) -> None:
        self._connection.close()
        for memory in self._memory:
            memory.close()
        self._memory = ()


def ready(descriptors: Iterable[int], events: int, timeout_s: float) -> list[int]:
    """Returns the descriptors on which one of the events, or an end, happens in time. Any number of
    any size, which `select.select` does not take."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, events)
    return [descriptor for descriptor, _event in poll.poll(timeout_s * 1000)]


def hear_last_words(lost: PeerLink, links: Iterable[PeerLink]) -> None:
    """A peer that went may have done so because of another. Raises what it or others know of that;
    they may need a moment."""
    _skim(lost)
    until = time.monotonic() + WHY_ENDED_S
    others = {link.descriptor: link for link in links if link.ended is None}
    for link in others.values():
        _skim(link)  # some of it may have been read already
    while others and (left_s := until - time.monotonic()) > 0:
        for descriptor in ready(others, select.POLLIN, left_s):
            if not _skim(others[descriptor]):
                del others[descriptor]


def _skim(link: PeerLink) -> bool:
    """Look for control frames; False when there can be no more."""
    try:
        link.incoming.skim()
    except (Closed, BadFrame):
        return False
    return True


def _within_host(connection: socket.socket) -> bool:
    """Whether both ends of a TCP connection have one address."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        return bool(connection.getpeername()[0] == connection.getsockname()[0])
    except OSError:
        return False  # it has ended already, as the first read will say
