"""The frames of one point-to-point connection: packed and sent in order, read and checked.

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

from ..frames import CHECKED, FAIL_BYTES, FRAME_BYTES, HEADER, MAGIC, TEXT_BYTES, BadFrame, Closed

EAGER, OFFER, BODY, WITHDRAW, ACCEPT, REFUSE, FAILED = range(16, 23)
"""A short message; the offer of a long one; a piece of that; a message is taken back; it was taken
or may come; it does not match; the mailbox at the other end is over, and why."""

EAGER_BYTES = 64 * 1024
_MOST_BYTES = {
    EAGER: EAGER_BYTES, OFFER: 0, BODY: FRAME_BYTES, WITHDRAW: 0,
    ACCEPT: 0, REFUSE: 0, FAILED: FAIL_BYTES,
}  # fmt: skip
_HEADER_BYTES = HEADER.size
_CHECK_AT = 16
_READ_BYTES = 64 * 1024
_JOINED_BYTES = 16 * 1024
_MASK_32, _MASK_64 = (1 << 32) - 1, (1 << 64) - 1


@dataclass(slots=True)
class Frame:
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
class _Body:
    number: int
    data: memoryview
    sent: Callable[[], None]
    offset: int = 0


class ParcelStream:
    """Both directions of a connection. Who inherits says what becomes of what comes."""

    taken: frozenset[int]
    """The kinds of frames that may come."""

    def __init__(self, connection: socket.socket, checked: bool) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._checked = checked
        self._short: deque[tuple[Frame, bytes]] = deque()
        self._bodies: deque[_Body] = deque()
        self._unsent: list[memoryview] = []
        self._under_way: int | None = None  # whose memory `_unsent` is a part of
        self._sent: Callable[[], None] | None = None
        self._order = 0
        self._buffer = bytearray()
        self._next_order = 0
        self._into: memoryview | None = None  # the rest of the piece that is being read
        self._piece = Frame(BODY, 0)
        self._sum = self._check = 0

    # -- out -----------------------------------------------------------------------------------

    def add(self, frame: Frame, payload: bytes = b"") -> None:
        """Queue a frame."""
        self._short.append((frame, payload))

    def add_body(self, number: int, data: memoryview, sent: Callable[[], None]) -> None:
        """Queue a long message; `sent` is called when the system has taken all of it. Until then,
        or `withdraw`, its memory must not change."""
        self._bodies.append(_Body(number, data, sent))

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
        """Send what the socket takes. Raises Ended."""
        while self._unsent or self._next_frames():
            try:
                count = self.connection.sendmsg(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise Closed.by(error) from None
            while count:
                first = self._unsent[0]
                if count < len(first):
                    self._unsent[0] = first[count:]
                    break
                count -= len(first)
                self._unsent.pop(0)
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
        head = Frame(BODY, body.number, 0, b"", len(body.data), body.offset, len(piece))
        self._unsent = [memoryview(self._pack(head, piece)), piece]
        self._under_way = body.number
        body.offset += len(piece)
        if body.offset == len(body.data):
            self._sent = self._bodies.popleft().sent
        return True

    def _pack(self, frame: Frame, payload: bytes | memoryview) -> bytes:
        packed = frame.pack(self._order, payload if self._checked else None)
        self._order = (self._order + 1) & _MASK_32
        return packed

    # -- in ------------------------------------------------------------------------------------

    def took(self, frame: Frame, payload: bytes) -> None:
        """A frame has come that is no piece of a long message. May raise BadFrame."""
        raise NotImplementedError

    def room_for(self, frame: Frame) -> memoryview:
        """Returns the memory for this piece of a long message; `frame.length` bytes. May raise
        BadFrame."""
        raise NotImplementedError

    def filled(self, frame: Frame) -> None:
        """Handles a piece that has been read into its memory."""
        raise NotImplementedError

    def named(self, frame: Frame) -> str:
        """The frame's message, for an error."""
        raise NotImplementedError

    def pull(self) -> None:
        """Read what is there. Raises Ended and BadFrame."""
        while True:
            if self._into is not None:
                if not self._fill(self._into):
                    return
            elif not self._frame():
                chunk = self._read()
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
        if text_bytes > TEXT_BYTES or length > _MOST_BYTES[kind]:
            raise BadFrame(f"a frame of kind {kind} with {text_bytes} and {length} bytes")
        end = _HEADER_BYTES + text_bytes
        whole = end if kind == BODY else end + length
        if len(buffer) < whole:
            return False
        frame = Frame(kind, number, tag, bytes(buffer[_HEADER_BYTES:end]), total, offset, length)
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

    def _check_sum(self, frame: Frame) -> None:
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
            count = self._read_into(into)
        if self._check >= 0:
            self._sum = zlib.crc32(into[:count], self._sum)
        self._into = into[count:] if count < len(into) else None
        if self._into is None:
            self._check_sum(self._piece)
            self.filled(self._piece)
        return count > 0

    def _read(self) -> bytes:
        """Reads what is there; empty when nothing is."""
        try:
            chunk = self.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Closed.by(error) from None
        if not chunk:
            raise Closed("closed the connection", orderly=False)
        return chunk

    def _read_into(self, into: memoryview) -> int:
        try:
            count = self.connection.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Closed.by(error) from None
        if not count:
            raise Closed("closed the connection", orderly=False)
        return count
