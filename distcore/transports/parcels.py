"""The frames of one point-to-point connection, in one direction each: from the rank that dialled,
messages; back to it, leave to send the long ones.

A short message travels at once. A long one is offered, and sent when its receive has been posted,
straight into that receive's memory: a rank never holds more of what nobody asked for than the short
messages. Either is over when its receive has taken it (`ACCEPT`, or `REFUSE` where they do not
match), so a send without a receive waits, whatever its size: a program does not depend on it.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .frames import FRAME_BYTES, HEADER, MAGIC, TEXT_BYTES, BadFrame, Ended

EAGER, OFFER, ACCEPT, BODY, REFUSE = 5, 6, 7, 8, 9
EAGER_BYTES = 64 * 1024
_HEADER_BYTES = HEADER.size
_READ_BYTES = 64 * 1024
_TAG_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message that arrived, or is offered (`body` is None): the sender's number for it, its tag
    and text, its length."""

    number: int
    tag: int
    text: str
    total: int
    body: bytes | None


class Sender:
    """The dialling end: sends messages, is told which long ones may go."""

    def __init__(
        self,
        connection: socket.socket,
        accepted: Callable[[int], None],
        refused: Callable[[int, str], None],
    ) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._accepted = accepted
        self._refused = refused
        self._unsent: deque[memoryview] = deque()
        self._done: deque[tuple[int, Callable[[], None]]] = deque()
        self._queued = self._gone = 0
        self._buffer = bytearray()

    def eager(self, number: int, tag: int, text: bytes, data: memoryview) -> None:
        """Queue a short message."""
        self._queue(_head(EAGER, number, tag, len(text), len(data), 0, len(data)) + text)
        self._queue(bytes(data))

    def offer(self, number: int, tag: int, text: bytes, total: int) -> None:
        """Queue the offer of a long one."""
        self._queue(_head(OFFER, number, tag, len(text), total, 0, 0) + text)

    def body(self, number: int, data: memoryview) -> None:
        """Queue the long message itself; its memory must stay until `when_sent`."""
        total = len(data)
        for offset in range(0, total, FRAME_BYTES):
            piece = data[offset : offset + FRAME_BYTES]
            self._queue(_head(BODY, number, 0, 0, total, offset, len(piece)))
            self._queue(piece)

    def when_sent(self, done: Callable[[], None]) -> None:
        """Call `done` when the system has taken everything queued so far."""
        self._done.append((self._queued, done))

    @property
    def wants_to_write(self) -> bool:
        return bool(self._unsent)

    def give_up(self) -> None:
        """The connection is over: nothing is sent any more."""
        self._unsent.clear()
        self._done.clear()

    def _queue(self, data: bytes | memoryview) -> None:
        if len(data):
            self._unsent.append(memoryview(data))
            self._queued += len(data)

    def push(self) -> None:
        """Send what the socket takes. Raises Ended."""
        try:
            while self._unsent:
                parts = [self._unsent[i] for i in range(min(len(self._unsent), 16))]
                sent = self.connection.sendmsg(parts)
                self._gone += sent
                while sent:
                    first = self._unsent[0]
                    if sent < len(first):
                        self._unsent[0] = first[sent:]
                        break
                    sent -= len(first)
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            raise Ended.by(error) from None
        while self._done and self._done[0][0] <= self._gone:
            self._done.popleft()[1]()

    def pull(self) -> None:
        """Read what the receiver answers. Raises Ended and BadFrame."""
        try:
            while chunk := _read(self.connection):
                self._buffer += chunk
        finally:  # its last answers may have come with its end
            self._take_answers()

    def _take_answers(self) -> None:
        while len(self._buffer) >= _HEADER_BYTES:
            kind, number, _tag, text_bytes, _total, _offset, _length = _unpack(self._buffer)
            if kind not in (ACCEPT, REFUSE) or text_bytes > TEXT_BYTES:
                raise BadFrame(f"a frame of kind {kind} where only answers come")
            end = _HEADER_BYTES + text_bytes
            if len(self._buffer) < end:
                return
            text = self._buffer[_HEADER_BYTES:end].decode("utf-8", "replace")
            del self._buffer[:end]
            if kind == ACCEPT:
                self._accepted(number)
            else:
                self._refused(number, text)


class Receiver:
    """The accepting end: hands over parcels; long ones go where `into` says."""

    def __init__(
        self,
        connection: socket.socket,
        arrived: Callable[[Parcel], None],
        finished: Callable[[int], None],
    ) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._arrived = arrived
        self._finished = finished
        self._targets: dict[int, memoryview] = {}
        self._unsent = b""
        self._buffer = bytearray()
        self._body: tuple[int, memoryview] | None = None
        self._filled = 0

    def accept(self, number: int, into: memoryview | None) -> None:
        """Tell the sender that its message was taken, or, with `into`, let it send what it
        offered. Raises Ended."""
        if into is not None:
            self._targets[number] = into
        self._unsent += _head(ACCEPT, number, 0, 0, 0, 0, 0)
        self.push()

    def refuse(self, number: int, text: str) -> None:
        """Tell the sender that its message does not match the receive `text`. Raises Ended."""
        raw = text.encode()[:TEXT_BYTES]
        self._unsent += _head(REFUSE, number, 0, len(raw), 0, 0, 0) + raw
        self.push()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._unsent)

    def push(self) -> None:
        """Send what the socket takes. Raises Ended."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            raise Ended.by(error) from None

    def give_up(self) -> None:
        """The connection is over: nothing is sent any more."""
        self._unsent = b""

    def pull(self) -> None:
        """Read what is there. Raises Ended and BadFrame."""
        while True:
            if self._body is not None:
                if not self._fill():
                    return
                continue
            if self._frame():
                continue
            chunk = _read(self.connection)
            if not chunk:
                return
            self._buffer += chunk

    def _fill(self) -> bool:
        """Read into the current body; False when nothing is there."""
        assert self._body is not None
        number, target = self._body
        if self._buffer:
            count = min(len(self._buffer), len(target) - self._filled)
            target[self._filled : self._filled + count] = self._buffer[:count]
            del self._buffer[:count]
        else:
            count = _read_into(self.connection, target[self._filled :])
        self._filled += count
        if self._filled == len(target):
            self._body = None
            whole = self._targets[number]
            if not len(whole):
                del self._targets[number]
                self._finished(number)
        return count > 0

    def _frame(self) -> bool:
        """Take the frame at the front of the buffer; False when it is not all there."""
        if len(self._buffer) < _HEADER_BYTES:
            return False
        kind, number, tag, text_bytes, total, offset, length = _unpack(self._buffer)
        if kind == BODY:
            rest = self._targets.get(number)
            if rest is None or length == 0 or length > len(rest):
                raise BadFrame(f"{length} bytes of message {number}, which was not accepted")
            del self._buffer[:_HEADER_BYTES]
            self._body, self._filled = (number, rest[:length]), 0
            self._targets[number] = rest[length:]
            return True
        if kind not in (EAGER, OFFER) or text_bytes > TEXT_BYTES or offset:
            raise BadFrame(f"a frame of kind {kind}")
        if kind == EAGER and (length > EAGER_BYTES or length != total):
            raise BadFrame(f"a short message of {length} bytes")
        end = _HEADER_BYTES + text_bytes + (length if kind == EAGER else 0)
        if len(self._buffer) < end:
            return False
        text = self._buffer[_HEADER_BYTES : _HEADER_BYTES + text_bytes].decode("utf-8", "replace")
        body = bytes(self._buffer[_HEADER_BYTES + text_bytes : end]) if kind == EAGER else None
        del self._buffer[:end]
        self._arrived(Parcel(number, tag, text, total, body))
        return True


def _head(
    kind: int, number: int, tag: int, text: int, total: int, offset: int, length: int
) -> bytes:
    return HEADER.pack(
        MAGIC, kind, 0, text, 0, 0, 0, 0, number, tag & _TAG_MASK, total, offset, length
    )


def _unpack(buffer: bytearray) -> tuple[int, int, int, int, int, int, int]:
    magic, kind, _flags, text, _slot, _group, _step, _check, number, tag, total, offset, length = (
        HEADER.unpack_from(buffer)
    )
    if magic != MAGIC:
        raise BadFrame("what came is not a frame")
    return kind, number, tag, text, total, offset, length


def _read(connection: socket.socket) -> bytes:
    """What is there; empty when nothing is. Raises Ended."""
    try:
        chunk = connection.recv(_READ_BYTES)
    except BlockingIOError:
        return b""
    except OSError as error:
        raise Ended.by(error) from None
    if not chunk:
        raise Ended("closed the connection", orderly=False)
    return chunk


def _read_into(connection: socket.socket, target: memoryview) -> int:
    try:
        count = connection.recv_into(target)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise Ended.by(error) from None
    if not count:
        raise Ended("closed the connection", orderly=False)
    return count
