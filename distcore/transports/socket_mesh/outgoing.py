"""The sending half of a connection: a message, frame by frame, as far as the socket takes it."""

from __future__ import annotations

import socket
import zlib

from ..frames import (
    CHECKED,
    DATA,
    FIRST,
    FRAME_BYTES,
    HEADER,
    IN_MEMORY,
    MAGIC,
    BadFrame,
    Closed,
    FramedCall,
    next_order,
)
from ..shared_memory import SLOT_BYTES, SLOTS, SlotOutbox

INLINE_BYTES = 32 * 1024
"""Up to here a copy through the socket costs less than a slot and its way back."""
_JOINED_BYTES = 8 * 1024
_NOTHING = memoryview(bytearray(0))


class Outgoing:
    """The messages of this rank to one peer, over a non-blocking socket and, for long ones, through
    shared memory where there is some."""

    def __init__(self, connection: socket.socket, outbox: SlotOutbox | None, checked: bool) -> None:
        self._connection = connection
        self._outbox = outbox
        self._checked = CHECKED if checked else 0
        self._unsent: list[memoryview] = []
        """The bytes of the current frame that the socket has not taken."""
        self._controls: list[bytes] = []
        self._data = _NOTHING
        self._sent = 0
        self._call: FramedCall | None = None
        self._step = 0
        self._order = 0

    def send(self, data: memoryview, call: FramedCall, step: int) -> bool:
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
        if not self._unsent:
            self._next_frame()
        return self.push()

    def push(self) -> bool:
        """Send what the socket takes; True when nothing is left to send."""
        while True:
            while self._unsent:
                try:
                    sent = self._connection.sendmsg(self._unsent)
                except BlockingIOError:
                    return False
                except OSError as error:
                    raise Closed.by(error) from None
                self._drop(sent)
            if self._controls:
                self._unsent = [memoryview(b"".join(self._controls))]
                self._controls = []
            elif not self._next_frame():
                return self._call is None

    @property
    def wants_to_write(self) -> bool:
        """Whether more could be sent if the socket took it (not: if the peer freed a slot)."""
        return bool(self._unsent)

    def control(self, frame: bytes) -> None:
        """Send this frame as soon as the current one is through."""
        self._controls.append(frame)
        self.push()

    def _drop(self, sent: int) -> None:
        while sent:
            first = self._unsent[0]
            if sent < len(first):
                self._unsent[0] = first[sent:]
                return
            sent -= len(first)
            self._unsent.pop(0)

    def _next_frame(self) -> bool:
        """Make the message's next frame; False when there is none, or no slot for it."""
        call = self._call
        if call is None:
            return False
        total = len(self._data)
        offset = self._sent
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
        """The peer has read this slot."""
        if self._outbox is None or slot >= SLOTS or slot in self._outbox.free:
            raise BadFrame(f"slot {slot} was given back, which was not in use")
        self._outbox.free.append(slot)

    def abandon(self) -> None:
        """Send nothing of the message behind the current frame."""
        self._data, self._call = _NOTHING, None

    def drop_unsent(self) -> None:
        """Give up on what could not be sent."""
        self._unsent, self._controls = [], []
