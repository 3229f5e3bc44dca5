"""A point-to-point connection: its frames, packed and sent in order, read and checked; and its two
ends: from the rank that dialled, messages; back to it, leave to send the long ones.

A short message travels at once. A long one is offered, and sent when its receive has been posted,
straight into that receive's memory: a rank never holds more of what nobody asked for than the short
messages. Either is taken when its receive is there (`ACCEPT`, or `REFUSE` where they do not match).
A send is over then, or when it is buffered: of what a rank has sent to another one, and that one
has not received, the first `BUFFERED_BYTES` (see `matching`). One that was buffered at once has no
answer of its own; its room is given back (`TAKEN`).

A frame is the header of `frames`, a text, and a payload. Each direction counts its frames, so that
one that is missing or came twice is found at the next; with `checked`, each also carries a CRC-32
of header, text and payload.
"""

from __future__ import annotations

import socket
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import GroupFailed
from .frames import (
    CHECKED,
    FAIL_BYTES,
    FRAME_BYTES,
    HEADER,
    MAGIC,
    TEXT_BYTES,
    BadFrame,
    Closed,
    failure,
    send_some,
)

EAGER, OFFER, BODY, WITHDRAW, ACCEPT, REFUSE, FAILED, BUFFERED, TAKEN = range(16, 25)
"""A short message; the offer of a long one; a piece of that; a message is taken back; it was taken
or may come; it does not match; the mailbox at the other end is over, and why; a short message whose
send is over; bytes of such messages were taken."""

EAGER_BYTES = 64 * 1024
BUFFERED_BYTES = 8 * 1024
"""What a rank sends to another one before that receives it, and need not wait for: enough for the
small messages of a protocol, and too little for a program to rest on, which another backend, or a
larger tensor, would block. The same within a host and between hosts: a program that ends on one
machine ends on two."""
MOST_BYTES = {
    EAGER: EAGER_BYTES, OFFER: 0, BODY: FRAME_BYTES, WITHDRAW: 0,
    ACCEPT: 0, REFUSE: 0, FAILED: FAIL_BYTES, BUFFERED: BUFFERED_BYTES, TAKEN: 0,
}  # fmt: skip
"""The longest payload of each kind."""
_HEADER_BYTES = HEADER.size
_CHECK_AT = 16
_READ_BYTES = 64 * 1024
_JOINED_BYTES = 16 * 1024
_MASK_32, _MASK_64 = (1 << 32) - 1, (1 << 64) - 1


@dataclass(slots=True)
class ParcelFrame:
    """A frame without its payload. `number` is the sender's for the message; `total` the message's
    length, `offset` and `length` the payload's place in it."""

    kind: int
    number: int
    tag: int = 0
    text: bytes = b""
    total: int = 0
    offset: int = 0
    length: int = 0

    def pack(self, order: int, payload: bytes | memoryview | None) -> bytes:
        """Header and text; with a checksum where the payload is given."""
        flags = 0 if payload is None else CHECKED
        head = HEADER.pack(
            MAGIC, self.kind, flags, len(self.text), 0, 0, order & _MASK_32, 0,
            self.number, self.tag & _MASK_64, self.total, self.offset, self.length,
        ) + self.text  # fmt: skip
        if payload is None:
            return head
        check = zlib.crc32(payload, zlib.crc32(head))
        return head[:_CHECK_AT] + check.to_bytes(4, "little") + head[_CHECK_AT + 4 :]


@dataclass(slots=True)
class Body:
    number: int
    data: memoryview
    sent: Callable[[], None]
    offset: int = 0


class ParcelStream:
    """Both directions of the connection to the rank `peer`. Who inherits says what becomes of what
    comes, and tells `events`, a `Matching`."""

    taken: frozenset[int]
    """The kinds of frames that may come."""

    def __init__(self, connection: socket.socket, checked: bool, peer: int, events: Any) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._checked = checked
        self.begin(peer, events)

    def begin(self, peer: int, events: Any) -> None:
        """Nothing is queued yet, and nothing has come."""
        self._peer = peer
        self._events = events
        self._short: deque[tuple[ParcelFrame, bytes]] = deque()
        self._bodies: deque[Body] = deque()
        self._unsent: list[memoryview] = []
        self._under_way: int | None = None  # whose memory `_unsent` is a part of
        self._sent: Callable[[], None] | None = None
        self._order = 0
        self._buffer = bytearray()
        self._next_order = 0
        self._into: memoryview | None = None  # the rest of the piece that is being read
        self._piece = ParcelFrame(BODY, 0)
        self._sum = self._check = 0

    # -- out -----------------------------------------------------------------------------------

    def add(self, frame: ParcelFrame, payload: bytes = b"") -> None:
        """Queue a frame."""
        self._short.append((frame, payload))

    def tell(self, error: GroupFailed) -> None:
        """Queue this mailbox's last words."""
        payload = failure(error)[HEADER.size :]
        self.add(ParcelFrame(FAILED, 0, length=len(payload)), payload)

    def add_body(self, number: int, data: memoryview, sent: Callable[[], None]) -> None:
        """Queue a long message; `sent` is called when the system has taken all of it. Until then,
        or `withdraw`, its memory must not change."""
        self._bodies.append(Body(number, data, sent))

    def withdraw(self, number: int) -> None:
        """Send no more of a message than the frame that is under way, and that from a copy."""
        self._bodies = deque(body for body in self._bodies if body.number != number)
        if self._under_way == number:
            self._unsent = [memoryview(bytes(part)) for part in self._unsent]
            self._under_way = self._sent = None

    def abandon(self) -> None:
        """Send nothing of what is queued but the rest of the frame that is under way."""
        self._short.clear()
        for number in [body.number for body in self._bodies]:
            self.withdraw(number)
        if self._under_way is not None:
            self.withdraw(self._under_way)

    def give_up(self) -> None:
        """The connection is over: nothing is sent any more."""
        self.abandon()
        self._unsent = []

    @property
    def wants_to_write(self) -> bool:
        queued = self._unsent or self._short or self._bodies
        return bool(queued) and self.connection.fileno() >= 0

    def unsent_bytes(self, number: int) -> int:
        """Returns how much of a long message the system has not taken."""
        left = sum(len(one.data) - one.offset for one in self._bodies if one.number == number)
        if self._under_way == number:
            left += len(self._unsent[-1])
        return left

    def push(self) -> None:
        """Send what the socket takes. Raises Closed."""
        while self._unsent or self._next_frames():
            if not send_some(self.connection, self._unsent):
                return
            if not self._unsent:
                self._under_way = None
                sent, self._sent = self._sent, None
                if sent is not None:
                    sent()

    def _next_frames(self) -> bool:
        """Pack what is to be sent next, messages and answers before pieces; False: nothing."""
        size = 0
        while self._short and size < _JOINED_BYTES:
            frame, payload = self._short.popleft()
            packed = self._pack(frame, payload) + payload
            self._unsent.append(memoryview(packed))
            size += len(packed)
        if size or not self._bodies:
            return bool(size)
        body = self._bodies[0]
        piece = body.data[body.offset : body.offset + FRAME_BYTES]
        head = ParcelFrame(BODY, body.number, 0, b"", len(body.data), body.offset, len(piece))
        self._unsent = [memoryview(self._pack(head, piece)), piece]
        self._under_way = body.number
        body.offset += len(piece)
        if body.offset == len(body.data):
            self._sent = self._bodies.popleft().sent
        return True

    def _pack(self, frame: ParcelFrame, payload: bytes | memoryview) -> bytes:
        packed = frame.pack(self._order, payload if self._checked else None)
        self._order = (self._order + 1) & _MASK_32
        return packed

    # -- in ------------------------------------------------------------------------------------

    def took(self, frame: ParcelFrame, payload: bytes) -> None:
        """A frame has come that is no piece of a long message. May raise BadFrame."""
        raise NotImplementedError

    def room_for(self, frame: ParcelFrame) -> memoryview:
        """Returns the memory for this piece of a long message; `frame.length` bytes. May raise
        BadFrame."""
        raise NotImplementedError

    def filled(self, frame: ParcelFrame) -> None:
        """Handles a piece that has been read into its memory."""
        raise NotImplementedError

    def named(self, frame: ParcelFrame) -> str:
        """The frame's message, for an error."""
        raise NotImplementedError

    def pull(self) -> None:
        """Read what is there. Raises Closed and BadFrame."""
        while True:
            if self._into is not None:
                if not self._fill(self._into):
                    return
            elif not self._frame():
                chunk = self._received(self.connection.recv, _READ_BYTES)
                if not chunk:
                    return
                self._buffer += chunk

    def _frame(self) -> bool:
        """Take the frame at the front of the buffer; False when it is not all there."""
        buffer = self._buffer
        if len(buffer) < _HEADER_BYTES:
            return False
        (
            magic, kind, flags, text_bytes, _slot, _group, order, check,
            number, tag, total, offset, length,
        ) = HEADER.unpack_from(buffer)  # fmt: skip
        if magic != MAGIC or kind not in self.taken:
            raise BadFrame(f"a frame of kind {kind}" if magic == MAGIC else "no frame came")
        if text_bytes > TEXT_BYTES or length > MOST_BYTES[kind]:
            raise BadFrame(f"a frame of kind {kind} with {text_bytes} and {length} bytes")
        end = _HEADER_BYTES + text_bytes
        whole = end if kind == BODY else end + length
        if len(buffer) < whole:
            return False
        frame = ParcelFrame(
            kind, number, tag, bytes(buffer[_HEADER_BYTES:end]), total, offset, length
        )
        if order != self._next_order:
            raise BadFrame(
                f"frame {order} in place of frame {self._next_order}, at {self.named(frame)}: "
                "one is missing, or came twice"
            )
        self._next_order = (order + 1) & _MASK_32
        self._check = check if flags & CHECKED else -1
        if flags & CHECKED:
            buffer[_CHECK_AT : _CHECK_AT + 4] = bytes(4)
            self._sum = zlib.crc32(buffer[:whole])
        if kind == BODY:
            del buffer[:end]
            self._into, self._piece = self.room_for(frame), frame
            return True
        payload = bytes(buffer[end:whole])
        del buffer[:whole]
        self._check_sum(frame)
        self.took(frame, payload)
        return True

    def _check_sum(self, frame: ParcelFrame) -> None:
        if self._check not in (-1, self._sum):
            raise BadFrame(
                f"in {self.named(frame)}, a frame whose checksum is wrong: the data was corrupted "
                "on the way"
            )

    def _fill(self, into: memoryview) -> bool:
        """Read into the current piece; False when nothing is there."""
        if self._buffer:
            count = min(len(self._buffer), len(into))
            into[:count] = self._buffer[:count]
            del self._buffer[:count]
        else:
            count = self._received(self.connection.recv_into, into)
        if self._check >= 0:
            self._sum = zlib.crc32(into[:count], self._sum)
        self._into = into[count:] if count < len(into) else None
        if self._into is None:
            self._check_sum(self._piece)
            self.filled(self._piece)
        return bool(count)

    def _received(self, receive: Callable[[Any], Any], what: Any) -> Any:
        """The answer of `recv` or `recv_into`; 0 when nothing is there."""
        try:
            found = receive(what)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Closed.by(error) from None
        if not found:
            raise Closed("closed the connection", orderly=False)
        return found


@dataclass(slots=True)
class Parcel:
    """A message that arrived, or is offered (`body` is None): the sender's number for it, its tag
    and text, its length. A `body` that is a view is valid only until `arrived` returns. `address`:
    where what is offered lies in the sender's process, or 0. `room`: the bytes of its sender's room
    that it takes, if its send is over."""

    number: int
    tag: int
    text: str
    total: int
    body: bytes | memoryview | None
    address: int = 0
    room: int = 0

    def __str__(self) -> str:
        return f"message {self.number} ({self.text or f'{self.total} bytes'}, tag={self.tag})"


class Sender(ParcelStream):
    """The dialling end: sends messages, is told which long ones may go."""

    taken = frozenset((ACCEPT, REFUSE, FAILED, TAKEN))
    room = BUFFERED_BYTES
    """The bytes of messages that may be buffered now."""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be buffered."""
        return size <= self.room

    def eager(self, kind: int, number: int, tag: int, text: bytes, data: memoryview) -> None:
        """Send a short message, EAGER or BUFFERED, which is copied. Raises Closed."""
        size = len(data)
        self.add(ParcelFrame(kind, number, tag, text, size, 0, size), bytes(data))
        self.push()

    def offer(self, number: int, tag: int, text: bytes, data: memoryview) -> None:
        """Send the offer of a long one. Raises Closed."""
        self.add(ParcelFrame(OFFER, number, tag, text, len(data)))
        self.push()

    def take_back(self, number: int) -> None:
        """Withdraws a message; its memory is not read any more."""
        self.withdraw(number)
        self.add(ParcelFrame(WITHDRAW, number))

    def took(self, frame: ParcelFrame, payload: bytes) -> None:
        if frame.kind == ACCEPT:
            self._events.accepted(self._peer, frame.number, frame.total)
        elif frame.kind == REFUSE:
            self.room += frame.total
            text = frame.text.decode("utf-8", "replace")
            self._events.refused(self._peer, frame.number, text, frame.total > 0)
        elif frame.kind == TAKEN:
            self.room += frame.total
            self._events.has_room(self._peer)
        else:
            self.abandon()
            self._events.takes_no_more(self._peer, payload)

    def named(self, frame: ParcelFrame) -> str:
        return f"the answer to message {frame.number}"


@dataclass(slots=True)
class _Target:
    parcel: Parcel
    rest: memoryview


class Receiver(ParcelStream):
    """The accepting end: hands over parcels; long ones go where `accept` says."""

    taken = frozenset((EAGER, BUFFERED, OFFER, BODY, WITHDRAW, FAILED))

    def begin(self, peer: int, events: Any) -> None:
        super().begin(peer, events)
        self._targets: dict[int, _Target] = {}

    def accept(self, parcel: Parcel, into: memoryview | None) -> None:
        """Tell the sender that its message was taken, or, with `into`, let it send what it
        offered. Raises Closed."""
        if into is not None:
            self._targets[parcel.number] = _Target(parcel, into)
        kind, total = (TAKEN, parcel.room) if parcel.room else (ACCEPT, parcel.total)
        self.add(ParcelFrame(kind, parcel.number, total=0 if into is not None else total))
        self.push()

    def read(self, _parcel: Parcel, _into: memoryview) -> bool:
        """Copies what is offered out of the sender's process; whether that could be."""
        return False

    def refuse(self, parcel: Parcel, text: str) -> None:
        """Tell the sender that its message does not match, in these words. Raises Closed."""
        words = text.encode()[:TEXT_BYTES]
        self.add(ParcelFrame(REFUSE, parcel.number, 0, words, parcel.room))
        self.push()

    def received_bytes(self, number: int) -> int:
        """Returns how much has come of a long message that was accepted."""
        target = self._targets[number]
        received = target.parcel.total - len(target.rest)
        if self._into is not None and self._piece.number == number:
            received += self._piece.length - len(self._into)
        return received

    def discard(self, number: int) -> None:
        """Discards what still comes of this long message: its receive's memory is not written any
        more."""
        target = self._targets[number]
        if self._into is not None and self._piece.number == number:
            self._into = memoryview(bytearray(len(self._into)))
        target.rest = memoryview(bytearray(len(target.rest)))

    def took(self, frame: ParcelFrame, payload: bytes) -> None:
        if frame.kind == FAILED:
            self._events.sends_no_more(self._peer, payload)
        elif frame.kind == WITHDRAW:
            self._targets.pop(frame.number, None)
            self._events.withdrawn(self._peer, frame.number)
        else:
            body = None if frame.kind == OFFER else payload
            if frame.offset or (body is not None and len(body) != frame.total):
                raise BadFrame(f"a short message of {frame.length} bytes")
            self._events.arrived(self._peer, _parcel(frame, body))

    def room_for(self, frame: ParcelFrame) -> memoryview:
        target = self._targets.get(frame.number)
        if target is None or not frame.length or frame.length > len(target.rest):
            raise BadFrame(f"{frame.length} bytes of message {frame.number}, which nobody accepted")
        if frame.offset != target.parcel.total - len(target.rest):
            raise BadFrame(f"{target.parcel} goes on at byte {frame.offset}")
        return target.rest[: frame.length]

    def filled(self, frame: ParcelFrame) -> None:
        target = self._targets[frame.number]
        target.rest = target.rest[frame.length :]
        if not len(target.rest):
            del self._targets[frame.number]
            self._events.completed(self._peer, frame.number)

    def named(self, frame: ParcelFrame) -> str:
        target = self._targets.get(frame.number)
        return str(target.parcel if target is not None else _parcel(frame, None))


def _parcel(frame: ParcelFrame, body: bytes | None) -> Parcel:
    tag = frame.tag if frame.tag < 2**63 else frame.tag - 2**64
    text = frame.text.decode("utf-8", "replace")
    room = frame.kind == BUFFERED and (frame.total or 1)
    return Parcel(frame.number, tag, text, frame.total, body, room=room)
