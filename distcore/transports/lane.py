"""Messages between two ranks of one host: a ring in shared memory each way, and bells.

A rank writes its own memory and reads its peer's. In its memory are a ring of records, which it
fills, and four words:

    HEAD   bytes that it has put into its ring, ever: what lies before is complete
    TAIL   bytes that it has taken from the peer's ring, ever: what lies before may be overwritten
    BELL   whom the peer is to wake: nobody, or which of its two descriptors; and for what
    TAKEN  bytes of the peer's buffered messages that receives have taken, ever

A slot of the ring (a record: head, text, payload, one after another in memory) is free, is filled,
is published by HEAD, is read in place, and is free again by TAIL. Each word has one writer, so none
of these steps needs a lock; `README.md` has the invariants. The words are 8 bytes, aligned, and
written by one store; `_fence` keeps the order of them and of what they speak of.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Collection
from struct import Struct
from typing import Any

from ..errors import GroupFailed
from .frames import TEXT_BYTES, BadFrame, Closed
from .parcels import (
    ACCEPT,
    BODY,
    BUFFERED,
    BUFFERED_BYTES,
    EAGER,
    FAILED,
    MOST_BYTES,
    OFFER,
    REFUSE,
    WITHDRAW,
    Body,
    Parcel,
    ParcelFrame,
    Receiver,
    Sender,
)
from .peer_memory import REORDERS, Fenced, PeerMemory

WORDS_BYTES = 4096
RING_BYTES = 1024 * 1024
LANE_BYTES = WORDS_BYTES + RING_BYTES
PIECE_BYTES = RING_BYTES // 2 - 64
"""Of a long message in one record: two with their heads fill the ring, so that one is written while
the other is read. A longer one might never find room: what is skipped at the ring's end counts."""

HEAD, TAIL, BELL, TAKEN = 0, 8, 16, 24  # a cache line each
NOBODY, WAITER, THREAD, ROOM, MESSAGES, ANSWERS = 0, 1, 2, 4, 8, 16
"""Values of BELL: nobody is to be woken, or a thread of the program that waits for a message, or
the mailbox's. Added to one of these is what wakes it, beside what always does: room in the peer's
ring or for what it buffers, messages (if a receive is posted), answers by which sends are over (if
one is waited for)."""

_RECORD = Struct("<HHIQqQQ")
"""kind, text bytes, payload bytes, number, tag, total, offset. Behind it is the text, and from the
next cache line on the payload. A message rounds up to lines seven times: no function does it."""
_TEXT_AT = _RECORD.size
_SKIP, _LEAVE = 31, 30
"""Kinds of records beside those of `parcels`: the ring goes on at its beginning; this rank's
mailbox is closed, and nothing follows."""
_MOST_BYTES = MOST_BYTES | {ACCEPT: -1, BODY: PIECE_BYTES, _LEAVE: 0}  # a right ACCEPT has no text
_NONE = memoryview(b"")


def may_sleep(lanes: Collection[Lane], whom: int) -> bool:
    """Has the peers wake `whom`; False where there is something to do at once."""
    for lane in lanes:
        lane.want(whom)
    return not any(lane.has_news for lane in lanes)


class Lane(Fenced):
    """Both rings between this rank and one peer. One thread at a time uses it, but `has_news`."""

    def __init__(
        self,
        memories: tuple[mmap.mmap, mmap.mmap],
        start: int,
        bells: tuple[int, int],
        peer_memory: PeerMemory,
    ) -> None:
        """`memories`: this rank's and the peer's, with a lane from `start` on; `bells`: the peer's
        eventfds, of a waiter and of its mailbox's thread, which are closed with the lane.
        `peer_memory`: for long messages, the lane's alone."""
        super().__init__()
        self.peer_memory = peer_memory
        mine, theirs = (memoryview(one)[start : start + LANE_BYTES] for one in memories)
        self._mine = mine[:WORDS_BYTES].cast("Q")
        self._theirs = theirs[:WORDS_BYTES].cast("Q")
        self._out, self._in = mine[WORDS_BYTES:], theirs[WORDS_BYTES:]
        self._bells = list(bells)
        self._head = self._tail = self._their_tail = self._taken = 0
        self.wants_to_write = self.wants_room = False
        """Whether something is queued, for which there was no room; or a send waits for its own."""
        self.said = 0
        """What was published or taken, for which the peer may have to be woken: bits of BELL."""
        self.wanted = NOBODY
        """Whom the peer wakes."""
        self.is_over = self.has_left = False
        self.want(THREAD | MESSAGES)  # the first message tells this rank that the peer sends some

    def attach(self, peer: int, events: Any) -> None:
        """Makes the ends of the messages to and from `peer`; they tell `events`, a `Matching`."""
        self.peer = peer
        self._events = events
        self.sender = LaneSender(self, peer, events)
        self.receiver = LaneReceiver(self, peer, events)

    def close(self) -> None:
        """Give the descriptors and the memory back."""
        while self._bells:
            os.close(self._bells.pop())
        self.peer_memory.close()
        # Both mappings have a descriptor each, and would wait for a garbage collection. Who is late
        # looks into memory of its own, in which nothing ever comes.
        blank = memoryview(bytearray(LANE_BYTES))
        self._mine = self._theirs = blank[:WORDS_BYTES].cast("Q")
        self._out = self._in = blank[WORDS_BYTES:]

    # -- what both ranks say to each other -----------------------------------------------------

    def want(self, whom: int) -> None:
        """From now on the peer wakes `whom` when it has published something. What it did before
        that is to be looked for behind this call (`has_news`)."""
        self.wanted = whom
        self._mine[BELL] = whom and whom | ROOM * self.wants_room
        if whom:
            self._fence()

    @property
    def has_news(self) -> bool:
        """Whether something has come, or room for what did not fit. From any thread."""
        theirs = self._theirs
        if theirs[HEAD] != self._tail:
            return True
        return self.wants_room and (
            theirs[TAIL] != self._their_tail or theirs[TAKEN] != self.sender.given_back
        )

    def ring(self) -> None:
        """Wake the peer, if there is something new for it and it wants to be woken for that."""
        if self.said:
            self._fence()
            bell = self._theirs[BELL]
            if bell & self.said:
                os.eventfd_write(self._bells[bell & THREAD and 1], 1)
            self.said = 0

    def put(
        self,
        kind: int,
        number: int,
        tag: int = 0,
        text: bytes = b"",
        total: int = 0,
        offset: int = 0,
        payload: bytes | memoryview = _NONE,
    ) -> bool:
        """Publish a record; False where there is no room for it now."""
        begin, length = (_TEXT_AT + len(text) + 63) & -64, len(payload)
        size = (begin + length + 63) & -64
        at = self._head % RING_BYTES
        skipped = RING_BYTES - at if at + size > RING_BYTES else 0
        head = self._head + skipped + size
        if head - self._their_tail > RING_BYTES:
            self._their_tail = self._theirs[TAIL]
            if head - self._their_tail > RING_BYTES:
                if not self.wants_to_write:
                    self.wants_to_write = True
                    self.want_room()
                    self.said |= WAITER | THREAD  # what the peer lets lie takes the room
                return False
        if REORDERS:
            self._fence()  # the peer has read what is overwritten now
        out = self._out
        if skipped:
            _RECORD.pack_into(out, at, _SKIP, 0, 0, 0, 0, 0, 0)
            at = 0
        _RECORD.pack_into(out, at, kind, len(text), length, number, tag, total, offset)
        if text:
            out[at + _TEXT_AT : at + _TEXT_AT + len(text)] = text
        if length:
            out[at + begin : at + begin + length] = payload
        if REORDERS:
            self._fence()
        self._head = self._mine[HEAD] = head
        if kind in (BUFFERED, EAGER, OFFER):
            self.said |= MESSAGES
        else:
            self.said |= ANSWERS if kind == ACCEPT and total else WAITER | THREAD
        return True

    # -- records -------------------------------------------------------------------------------

    def pull(self) -> None:
        """Take what has been published. Raises Closed and BadFrame."""
        head = self._theirs[HEAD]
        if REORDERS:
            self._fence()
        if not 0 <= head - self._tail <= RING_BYTES:
            raise BadFrame(f"a ring that is filled from byte {self._tail} to {head}")
        while self._tail != head:
            self._tail += self._take(self._tail % RING_BYTES)
            if REORDERS:
                self._fence()
            self._mine[TAIL] = self._tail
            self.said |= ROOM
            if self._theirs[BELL] & ROOM:
                self.ring()  # the peer fills while this rank goes on

    def push(self) -> None:
        """Put what is queued, and end sends, as far as there is room."""
        sender, receiver = self.sender, self.receiver
        self._their_tail = self._theirs[TAIL]
        sender.regain()  # else it would be news until a send needs it, and nobody could sleep
        receiver.push()
        sender.push()
        self.wants_to_write = bool(sender._short or sender._bodies or receiver._short)
        if self._events.has_room(self.peer) and not self.wants_to_write:
            self.wants_room = False
            self.want(self.wanted)

    def want_room(self) -> None:
        """From now on room, in the peer's ring or for what is buffered, counts as news."""
        self.wants_room = True
        self.want(self.wanted)

    def took(self, size: int) -> None:
        """A receive has taken so many bytes that the peer has buffered."""
        self._mine[TAKEN] = self._taken = self._taken + size
        self.said |= ROOM

    def leave(self) -> None:
        """Queue the last record: nothing follows."""
        self.has_left = True
        self.sender.add(ParcelFrame(_LEAVE, 0))

    def give_up(self) -> None:
        """The peer has left: nothing is put any more."""
        self.sender.give_up()
        self.receiver.give_up()
        self.wants_to_write = self.wants_room = False

    def _take(self, at: int) -> int:
        """Handle the record there; its size."""
        kind, text_bytes, length, number, tag, total, offset = _RECORD.unpack_from(self._in, at)
        if kind == ACCEPT and not text_bytes and not length:
            self._events.accepted(self.peer, number, total)
            return 64
        if kind == _SKIP:
            return RING_BYTES - at
        begin = (_TEXT_AT + text_bytes + 63) & -64
        size: int = (begin + length + 63) & -64
        if text_bytes > TEXT_BYTES or length > _MOST_BYTES.get(kind, -1) or at + size > RING_BYTES:
            raise BadFrame(f"a record of kind {kind} with {text_bytes} and {length} bytes")
        payload = self._in[at + begin : at + begin + length]
        text = bytes(self._in[at + _TEXT_AT : at + _TEXT_AT + text_bytes])
        if kind in (BUFFERED, EAGER, OFFER):
            if kind != OFFER and length != total:
                raise BadFrame(f"a short message of {length} bytes")
            body = None if kind == OFFER else payload
            room = kind == BUFFERED and (total or 1)
            words = text.decode("utf-8", "replace")
            parcel = Parcel(number, tag, words, total, body, offset, room)
            self._events.arrived(self.peer, parcel)
        elif kind == BODY:
            frame = ParcelFrame(kind, number, tag, text, total, offset, length)
            self.receiver.room_for(frame)[:] = payload
            self.receiver.filled(frame)
        elif kind == FAILED:
            self.sender.abandon()
            self._events.sends_no_more(self.peer, bytes(payload))
            self._events.takes_no_more(self.peer, bytes(payload))
        elif kind == _LEAVE:
            raise Closed("closed the connection", orderly=True)
        else:
            end = self.sender if kind == REFUSE else self.receiver
            end.took(ParcelFrame(kind, number, tag, text, total), b"")
        return size


class _LaneEnd:
    """Mixed in before the end of a socket: queues as that does, and puts into the lane."""

    _short: deque[tuple[ParcelFrame, bytes]]
    _bodies: deque[Body]

    def __init__(self, lane: Lane, peer: int, events: Any) -> None:
        self._lane = lane
        self.begin(peer, events)  # type: ignore[attr-defined]

    def add(self, frame: ParcelFrame, payload: bytes = b"") -> None:
        """Puts a frame, or queues it."""
        self._short.append((frame, payload))
        self.push()

    def push(self) -> None:
        lane = self._lane
        while self._short:
            frame, payload = self._short[0]
            number, tag, text, total = frame.number, frame.tag, frame.text, frame.total
            if not lane.put(frame.kind, number, tag, text, total, frame.offset, payload):
                return
            self._short.popleft()
        while self._bodies:
            body = self._bodies[0]
            piece = body.data[body.offset : body.offset + PIECE_BYTES]
            if not lane.put(BODY, body.number, 0, b"", len(body.data), body.offset, piece):
                return
            lane.ring()  # the peer copies this piece out while the next is copied in
            body.offset += len(piece)
            if body.offset == len(body.data):
                self._bodies.popleft().sent()

    def pull(self) -> None:
        self._lane.pull()


class LaneSender(_LaneEnd, Sender):
    """See `parcels.Sender`."""

    given_back = 0
    """The peer's TAKEN, when it was read last."""

    def regain(self) -> None:
        """Counts what receives have taken of buffered messages as room again."""
        before, self.given_back = self.given_back, self._lane._theirs[TAKEN]
        self.room += self.given_back - before

    def has_room(self, size: int) -> bool:
        if size > self.room:
            self.regain()
        return size <= self.room

    def eager(self, kind: int, number: int, tag: int, text: bytes, data: memoryview) -> None:
        size, lane = len(data), self._lane
        if self._short or not lane.put(kind, number, tag, text, size, 0, data):
            super().eager(kind, number, tag, text, data)
        if kind == EAGER and size <= BUFFERED_BYTES:
            lane.want_room()

    def offer(self, number: int, tag: int, text: bytes, data: memoryview) -> None:
        """Send the offer of a long one, which says where the peer may read it."""
        address = self._lane.peer_memory.offers(data)
        self.add(ParcelFrame(OFFER, number, tag, text, len(data), address))

    def take_back(self, number: int) -> None:
        self._lane.peer_memory.withdraw()
        super().take_back(number)

    def abandon(self) -> None:
        self._lane.peer_memory.withdraw()
        super().abandon()


class LaneReceiver(_LaneEnd, Receiver):
    """See `parcels.Receiver`."""

    def accept(self, parcel: Parcel, into: memoryview | None) -> None:
        if parcel.room:
            self._lane.took(parcel.room)
            return
        size = parcel.total
        if self._short or into is not None or not self._lane.put(ACCEPT, parcel.number, total=size):
            super().accept(parcel, into)

    def read(self, parcel: Parcel, into: memoryview) -> bool:
        return bool(parcel.address) and self._lane.peer_memory.read(parcel.address, into)

    def took(self, frame: ParcelFrame, payload: bytes) -> None:
        if frame.kind == WITHDRAW:
            self._lane.peer_memory.known += 1
        super().took(frame, payload)

    def tell(self, error: GroupFailed) -> None:
        """Nothing: the lane's sender tells it to both ends."""
