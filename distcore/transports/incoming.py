"""The receiving half of a connection: the one message that is expected, checked frame by frame."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable
from contextlib import suppress

from ..errors import CallMismatch, GroupFailed
from .base import SEGMENT_BYTES, Consume, Receive
from .frames import (
    BYE,
    CHECKED,
    CREDIT,
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
    TEXT_BYTES,
    UNREADABLE,
    WAITS,
    BadFrame,
    Closed,
    FramedCall,
    GaveUp,
    control,
    failure_from,
    next_order,
    waits_from,
)
from .shared_memory import SLOT_BYTES, SLOTS, SlotInbox

_BUFFER_BYTES = 16 * 1024
_HEADER_BYTES = HEADER.size
_NOTHING = memoryview(bytearray(0))

_scratches: list[memoryview] = []
"""Buffers of a segment each, for messages that are consumed; shared by all links of the process."""


class Incoming:
    """The messages of a peer to this rank. `sender` is its global rank, `receiver` this one's;
    `credit` and `reply` belong to the other half: a slot was given back, and a frame is to be sent.
    """

    def __init__(
        self,
        connection: socket.socket,
        inbox: SlotInbox | None,
        receiver: int,
        sender: int,
        credit: Callable[[int], None],
        reply: Callable[[bytes], None],
    ) -> None:
        self._connection = connection
        self._inbox = inbox
        self._receiver = receiver
        self._sender = sender
        self._credit = credit
        self._reply = reply
        self.ended: Closed | None = None
        self.gave_up: GaveUp | None = None
        # The buffer in front of the socket, the frame's rest, and the message so far.
        self._buffer = _NOTHING
        self._start = self._end = 0
        self._left = 0
        self._frame_sum = 0
        self._frame_check: int | None = None
        self._receive: Receive | None = None
        self._expected: FramedCall | None = None
        self._expected_step = 0
        self._got = 0
        self._begun = False
        self._order = 0  # of the next data frame, where they are counted
        self._scratch = _NOTHING
        self._filled = 0

    def expect(self, receive: Receive, call: FramedCall, step: int) -> None:
        """Receives the peer's next message for `receive`."""
        self._receive, self._expected, self._expected_step = receive, call, step
        self._got = 0
        self._begun = False

    @property
    def has_more(self) -> bool:
        """Whether something was read that is not looked at yet."""
        return self._end != self._start

    @property
    def progress(self) -> str:
        """Text that tells how much of the expected message is here."""
        total = 0 if self._receive is None else len(self._receive.into)
        if not total:
            return f"rank {self._sender} sent nothing"
        return f"rank {self._sender} sent {self._got} of {total} bytes"

    @property
    def expects(self) -> bool:
        """Whether a message is expected and not complete."""
        return self._receive is not None

    def pull(self) -> bool:
        """Receive what is there. True when the expected message is complete, or, when none is
        expected, when another one's data is next in line: there is no point in reading on."""
        while True:
            if self._left:
                receive = self._receive
                assert receive is not None
                if not self._body(receive):
                    return False
                if not self._left and self._frame_over(receive):
                    return True
            else:
                if self._begun and self._receive is None:
                    self._begun = False
                size = self._end - self._start
                if size < _HEADER_BYTES or size < self._frame_head():
                    if not self._fill():
                        return False
                    continue
                done = self._frame()
                if done is not None:
                    return done

    def _fill(self) -> bool:
        """Read into the buffer; False when nothing is there."""
        if not len(self._buffer):
            self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start:
            rest = bytes(self._buffer[self._start : self._end])
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        count = self._read(self._buffer[self._end :])
        self._end += count
        return count > 0

    def _read(self, into: memoryview) -> int:
        """The number of bytes read; 0 when nothing is there now."""
        try:
            count = self._connection.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.ended = self.ended or Closed.by(error)
            raise self.ended from None
        if count == 0:
            self.ended = self.ended or Closed("closed the connection", orderly=False)
            raise self.ended
        return count

    def _frame_head(self) -> int:
        """The bytes that must be in the buffer before the frame at its start is looked at."""
        magic, kind, _flags, text_bytes, *_rest, length = HEADER.unpack_from(
            self._buffer, self._start
        )
        if magic != MAGIC:
            raise BadFrame("what came is not a frame")
        if kind == DATA:
            if text_bytes > TEXT_BYTES + 8:
                raise BadFrame(f"a text of {text_bytes} bytes")
            return _HEADER_BYTES + int(text_bytes)
        if length > FAIL_BYTES:
            raise BadFrame(f"a control frame of {length} bytes")
        return _HEADER_BYTES + int(length)

    def _frame(self) -> bool | None:
        """Take the frame at the buffer's start; None: go on reading, else as for `pull`."""
        start = self._start
        (
            _magic, kind, flags, text_bytes, slot, group, step, checksum,
            seq, print_, total, offset, length,
        ) = HEADER.unpack_from(self._buffer, start)  # fmt: skip
        body = start + _HEADER_BYTES
        if kind != DATA:
            self._start = body + length
            self._control(kind, slot, bytes(self._buffer[body : self._start]))
            return None
        receive, call = self._receive, self._expected
        if receive is None or call is None:
            return True
        if flags & CHECKED and not flags & IN_MEMORY:
            self._check_order(slot)
        if (
            seq != call.seq
            or print_ != call.fingerprint
            or step != self._expected_step
            or total != len(receive.into)
            or group != call.group
        ):
            theirs = bytes(self._buffer[body : body + text_bytes]).rstrip(b"\0")
            raise self._mismatch(call, group, seq, step, total, theirs.decode("utf-8", "replace"))
        address = offset
        if flags & IN_PLACE:
            offset = 0
        if offset != self._got or bool(flags & FIRST) == self._begun:
            raise BadFrame(
                f"a frame at byte {offset} of {total} where byte {self._got} was expected: "
                "one is missing, or came twice"
            )
        if flags & IN_PLACE:
            self._start = body + text_bytes
            return self._in_place(receive, address)
        limit = SLOT_BYTES if flags & IN_MEMORY else FRAME_BYTES
        if length > limit or offset + length > total or (length < total - offset and length % 64):
            raise BadFrame(f"a frame of {length} bytes at {offset} of {total}")
        self._begun = True
        self._start = body + text_bytes
        self._frame_check = checksum if flags & CHECKED else None
        self._frame_sum = 0
        if flags & IN_MEMORY:
            return self._from_memory(receive, slot, length)
        self._left = length
        if length == 0:
            return self._frame_over(receive) or None
        return None

    def _check_order(self, order: int) -> None:
        if order != self._order:
            raise BadFrame(
                f"data frame {order} where frame {self._order} was expected: "
                "one is missing, or came twice"
            )
        self._order = next_order(order)

    def _mismatch(
        self, call: FramedCall, group: int, seq: int, step: int, total: int, text: str
    ) -> GroupFailed:
        mine, peer = str(call), f"rank {self._sender}"
        if group != call.group:
            raise BadFrame("a frame of another group")
        theirs = f"{text or 'another call'} #{seq}"
        if theirs != mine:
            message = f"rank {self._receiver} is in {mine}, but {peer} is in {theirs}"
        else:
            assert self._receive is not None
            message = (
                f"in {mine}, step {step}, {peer} sent {total} bytes where rank {self._receiver} "
                f"expects {len(self._receive.into)} (step {self._expected_step})"
            )
        return CallMismatch(message, None)

    def _control(self, kind: int, slot: int, payload: bytes) -> None:
        if kind == CREDIT:
            self._credit(slot)
        elif kind == FAIL:
            raise failure_from(payload, self._sender)
        elif kind == BYE:
            self.ended = Closed("left the group", orderly=True)
        elif kind == WAITS:
            self.gave_up = waits_from(payload)
            raise self.gave_up
        else:
            raise BadFrame(f"a frame of kind {kind}")

    def _from_memory(self, receive: Receive, slot: int, size: int) -> bool | None:
        if self._inbox is None or slot >= SLOTS:
            raise BadFrame(f"slot {slot} of memory that was not shared")
        data = self._inbox.get(slot, size)
        self._check(data)
        if receive.consume is None:
            receive.into[self._got : self._got + size] = data
        else:
            for offset in range(0, size, SEGMENT_BYTES):
                receive.consume(data[offset : offset + SEGMENT_BYTES], self._got + offset)
        self._got += size
        # A peer that has ended needs no slot any more, and what it wrote before is here still: only
        # reading says that nothing more comes.
        with suppress(Closed):
            self._reply(control(CREDIT, slot))
        return self._frame_over(receive) or None

    def _in_place(self, receive: Receive, address: int) -> bool | None:
        """Read a whole message out of the peer's process; where that cannot be, it sends it."""
        peer_memory = None if self._inbox is None else self._inbox.peer_memory
        if peer_memory is None:
            raise BadFrame(f"memory at {address:#x}, which this rank did not say it could read")
        into, consume, answer = receive.into, receive.consume, READ
        step = len(into)
        if consume is not None:
            step, into = SEGMENT_BYTES, self._segment()
        for offset in range(0, len(receive.into), step):
            piece = into[: min(step, len(receive.into) - offset)]
            if not peer_memory.read(address + offset, piece):
                if offset:
                    raise Closed("has no memory any more", orderly=False)
                answer = UNREADABLE
                break
            if consume is not None:
                consume(piece, offset)
        with suppress(Closed):  # as for a slot
            self._reply(control(CREDIT, answer))
        if answer == UNREADABLE:
            return None
        self._got = len(receive.into)
        return self._frame_over(receive) or None

    def _segment(self) -> memoryview:
        """Returns the buffer for a message that is consumed, which `_frame_over` gives back."""
        if not len(self._scratch):
            self._scratch = _scratches.pop() if _scratches else memoryview(bytearray(SEGMENT_BYTES))
        return self._scratch

    def _body(self, receive: Receive) -> bool:
        """Take what is there of the current frame; False when nothing is."""
        available = min(self._end - self._start, self._left)
        if receive.consume is not None:
            return self._consume(receive, receive.consume, available)
        target = receive.into[self._got : self._got + self._left]
        if available:
            piece = self._buffer[self._start : self._start + available]
            target[:available] = piece
            self._start += available
            count = available
        else:
            count = self._read(target)
            if not count:
                return False
        self._check(target[:count], last=count == self._left)
        self._got += count
        self._left -= count
        return True

    def _consume(self, receive: Receive, consume: Consume, available: int) -> bool:
        """Consumes a message that is handed on in segments."""
        got = self._got
        room = min(SEGMENT_BYTES - self._filled, self._left)
        if not self._filled and available == room and not self._start % 8:
            piece = self._buffer[self._start : self._start + room]  # whole: no copy is needed
            self._start += room
            self._check(piece, last=room == self._left)
            self._got += room
            self._left -= room
            consume(piece, got)
            return True
        target = self._segment()[self._filled : self._filled + room]
        if available:
            count = min(available, room)
            target[:count] = self._buffer[self._start : self._start + count]
            self._start += count
        else:
            count = self._read(target)
            if not count:
                return False
        self._check(target[:count], last=count == self._left)
        self._filled += count
        self._got += count
        self._left -= count
        if self._filled == SEGMENT_BYTES or self._got == len(receive.into):
            filled, self._filled = self._filled, 0
            consume(self._scratch[:filled], self._got - filled)
        return True

    def _check(self, piece: memoryview, last: bool = True) -> None:
        if self._frame_check is None:
            return
        self._frame_sum = zlib.crc32(piece, self._frame_sum)
        if last and self._frame_sum != self._frame_check:
            raise BadFrame("a frame whose checksum is wrong: the data was corrupted on the way")

    def _frame_over(self, receive: Receive) -> bool:
        """Whether the message is over with this frame."""
        if self._got != len(receive.into):
            return False
        self._receive = None
        self._begun = False
        if len(self._scratch):
            _scratches.append(self._scratch)
            self._scratch = _NOTHING
        return True

    def skim(self) -> None:
        """Take the control frames that are there, and throw away the data between them: the group
        has failed. Raises as `pull`, but for GaveUp, which is kept in `gave_up`."""
        self._receive = None
        while True:
            there = self._end - self._start
            if self._left and there:
                skipped = min(there, self._left)
                self._start += skipped
                self._left -= skipped
            elif self._left or there < _HEADER_BYTES or there < self._frame_head():
                if not self._fill():
                    return
            else:
                self._skip_frame()

    def _skip_frame(self) -> None:
        _magic, kind, flags, text_bytes, slot, *_rest, length = HEADER.unpack_from(
            self._buffer, self._start
        )
        body = self._start + _HEADER_BYTES
        if kind == DATA:
            self._start = body + text_bytes
            self._left = 0 if flags & IN_MEMORY else length
        else:
            self._start = body + length
            with suppress(GaveUp):
                self._control(kind, slot, bytes(self._buffer[body : self._start]))
