"""A connection to a peer: what is sent, what is received, and the memory that both share.

The sending half (`Outgoing`) and the receiving half (`incoming`) do what can be done now, frame by
frame, and say whether they are through. Waiting is the mesh's part.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
import time
import zlib
from collections.abc import Iterable

from .frames import (
    CHECKED,
    DATA,
    FAIL,
    FAIL_BYTES,
    FIRST,
    FRAME_BYTES,
    HEADER,
    IN_MEMORY,
    IN_PLACE,
    MAGIC,
    READ,
    UNREADABLE,
    BadFrame,
    Closed,
    FramedCall,
    next_order,
    send_some,
)
from .incoming import Incoming
from .shared_memory import SLOT_BYTES, SLOTS, SlotInbox, SlotOutbox

_MOST_BYTES = 8 * 1024 * 1024
_MARK = struct.pack("<HB", MAGIC, FAIL)


def last_words(descriptor: int) -> bytes | None:
    """The payload of the failure at the end of what a peer sent, if it lies there unread (see
    `frames.failure_from`). Takes nothing away; the peer must have ended the connection."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            answer = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
            size = int.from_bytes(answer, "little")
            if not 0 < size <= _MOST_BYTES:
                return None
            unread = connection.recv(size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return None
    begin = unread.rfind(_MARK, max(0, len(unread) - HEADER.size - FAIL_BYTES))
    if begin < 0 or begin + HEADER.size > len(unread):
        return None
    payload = unread[begin + HEADER.size :]
    length = HEADER.unpack_from(unread, begin)[-1]
    return payload if len(payload) == length else None


INLINE_BYTES = 32 * 1024
"""Up to here a copy through the socket costs less than a slot and its way back."""
IN_PLACE_BYTES = 192 * 1024
"""A longer message that is at rest is read where it lies: up to here the sender would rather go on
than wait for that."""
_JOINED_BYTES = 8 * 1024
_NOTHING = memoryview(bytearray(0))


class Outgoing:
    """The messages of this rank to one peer, over a non-blocking socket and, for long ones, through
    shared memory where there is some."""

    def __init__(self, connection: socket.socket, outbox: SlotOutbox | None, checked: bool) -> None:
        self._connection = connection
        self._outbox = outbox
        self._peer_memory = outbox.peer_memory if outbox is not None else None
        self._checked = CHECKED if checked else 0
        self._unsent: list[memoryview] = []
        """The bytes of the current frame that the socket has not taken."""
        self._controls: list[bytes] = []
        self._data = _NOTHING
        self._address = 0  # where the peer is to read it
        self._sent = 0
        self._call: FramedCall | None = None
        self._step = 0
        self._order = 0

    def send(self, data: memoryview, call: FramedCall, step: int, at_rest: bool = False) -> bool:
        """Begin to send a message; True when it is on its way already."""
        size = len(data)
        if size <= _JOINED_BYTES and not self._unsent and not self._checked:
            text = call.text
            packet = b"".join(
                (
                    HEADER.pack(
                        MAGIC, DATA, FIRST, len(text), 0, call.group, step, 0,
                        call.seq, call.fingerprint, size, 0, size,
                    ),
                    text,
                    data,
                )
            )  # fmt: skip
            try:
                sent = self._connection.send(packet)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise Closed.by(error) from None
            if sent == len(packet):
                return True
            self._unsent = [memoryview(packet)[sent:]]
            return False
        self._data, self._sent, self._call, self._step = data, 0, call, step
        self._address = 0
        if at_rest and self._peer_memory is not None and size > IN_PLACE_BYTES:
            self._address = self._peer_memory.offers(data)
        if not self._unsent:
            self._next_frame()
        return self.push()

    def push(self) -> bool:
        """Send what the socket takes; True when nothing is left to send."""
        while True:
            while self._unsent:
                if not send_some(self._connection, self._unsent):
                    return False
            if self._controls:
                self._unsent = [memoryview(b"".join(self._controls))]
                self._controls = []
            elif not self._next_frame():
                return self._call is None

    @property
    def wants_to_write(self) -> bool:
        """Whether more could be sent if the socket took it (not: if the peer freed a slot)."""
        return bool(self._unsent)

    @property
    def is_through(self) -> bool:
        """Whether the peer has all that it needs of the message."""
        return self._call is None and not self._unsent

    def control(self, frame: bytes) -> None:
        """Send this frame as soon as the current one is through."""
        self._controls.append(frame)
        self.push()

    def _next_frame(self) -> bool:
        """Make the message's next frame; False when there is none, or no slot for it."""
        call = self._call
        if call is None:
            return False
        total = len(self._data)
        offset = self._sent
        if self._address:
            if offset:
                return False  # the peer has not answered
            header = HEADER.pack(
                MAGIC, DATA, FIRST | IN_PLACE, len(call.text), 0, call.group, self._step, 0,
                call.seq, call.fingerprint, total, self._address, 0,
            )  # fmt: skip
            self._unsent = [memoryview(header + call.text)]
            self._sent = total
            return True
        in_memory = self._outbox is not None and total > INLINE_BYTES
        size = min(total - offset, SLOT_BYTES if in_memory else FRAME_BYTES)
        payload = self._data[offset : offset + size]
        flags, slot, text = self._checked, 0, b""
        if in_memory:
            assert self._outbox is not None
            free = self._outbox.put(payload)
            if free is None:
                return False
            flags |= IN_MEMORY
            slot = free
        if offset == 0:
            flags |= FIRST
            text = call.text
        checksum = zlib.crc32(payload) if self._checked else 0
        if self._checked and not in_memory:
            slot = self._order
            self._order = next_order(slot)
        header = HEADER.pack(
            MAGIC, DATA, flags, len(text), slot, call.group, self._step, checksum,
            call.seq, call.fingerprint, total, offset, size,
        )  # fmt: skip
        self._unsent = [memoryview(header + text)]
        if not in_memory and size:
            self._unsent.append(payload)
        self._sent = offset + size
        if self._sent == total:
            self._data, self._call = _NOTHING, None
        return True

    def credit(self, slot: int) -> None:
        """The peer has read this slot, or has answered what it was to read in place."""
        if slot in (READ, UNREADABLE) and self._peer_memory is not None:
            if self._address and self._sent:
                self._sent = self._address = 0
                if slot == READ:
                    self._data, self._call = _NOTHING, None
                else:
                    self._peer_memory.is_read = False  # from now on all goes through slots
            return
        if self._outbox is None or slot >= SLOTS or slot in self._outbox.free:
            raise BadFrame(f"slot {slot} was given back, which was not in use")
        self._outbox.free.append(slot)

    def abandon(self) -> None:
        """Send nothing of the message behind the current frame; its memory may change."""
        if self._peer_memory is not None:
            self._peer_memory.withdraw()
        self._data, self._call = _NOTHING, None

    def drop_unsent(self) -> None:
        """Give up on what could not be sent."""
        self._unsent, self._controls = [], []


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
    """A peer that went may have done so because of another. Raises what it or others know of that,
    and say within a tenth of a second."""
    _skim(lost)
    until = time.monotonic() + 0.1
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
