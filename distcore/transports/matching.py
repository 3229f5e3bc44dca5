"""The matching of messages with receives, of what one rank of a group has posted and its peers have
sent: a receive takes the first message with its tag from its peer (or from any), in the order in
which the peer sent them.

Messages of at most `BUFFERED_BYTES` are buffered in the order in which they were posted, as far as
there is room: those to one peer that it has not received, whatever their tags, are no more bytes
than that together. An empty one counts as a byte.

One thread at a time uses it. It answers through the connections' ends, and waits for nothing.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..base.call_text import message
from ..base.deadline import extended, timed_out
from ..errors import CallMismatch, DeadlineExceeded, GroupFailed, PeerLost
from .frames import TEXT_BYTES, BadFrame, Closed, failure_from
from .parcels import BUFFERED, BUFFERED_BYTES, EAGER, EAGER_BYTES, Parcel, Receiver, Sender


class Box(Protocol):
    """The mailbox of a posting, as the posting needs it."""

    finished: deque[Posting]
    """Postings that are over and have yet to tell so."""

    def look(self) -> None:
        """Moves what can be moved at once."""

    def wait(self, posting: Posting, timeout_s: float | None) -> bool:
        """Moves messages until this one is over; whether it was in time."""


@dataclass(eq=False, slots=True)
class Posting:
    """A send or receive that was posted."""

    sends: bool
    peer: int | None
    tag: int
    data: memoryview
    deadline: float
    text: str
    what: str
    box: Box | None = None
    error: GroupFailed | None = None
    owner: object = None
    """The object that must live as long as `data` is used."""
    source: int = -1
    """The group rank that a receive got it from; of a send, `peer`."""
    is_over: bool = False
    _turn: threading.Event | None = None
    _to_tell: list[Callable[[], None]] = field(default_factory=list)

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.is_over else "pending"
        return f"<{self.what}: {state}>"

    @property
    def done(self) -> bool:
        """Whether it is over, well or badly. Who asks moves what can be moved."""
        if not self.is_over and self.box is not None:
            self.box.look()
        return self.is_over

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over; False when `timeout_s` ran out before. Raises its error."""
        if not self.is_over:
            box = self.box
            if not (self.wait_for_turn(timeout_s) if box is None else box.wait(self, timeout_s)):
                return False
        if self.error is not None:
            raise self.error
        return True

    def wait_for_turn(self, timeout_s: float | None) -> bool:
        """Wait until it is over or `give_turn` is called; whether it is over."""
        with _MAKING:
            turn = self._turn = self._turn or threading.Event()
        if not self.is_over:
            turn.wait(timeout_s)
            if not self.is_over:
                turn.clear()
        return self.is_over

    def give_turn(self) -> None:
        """Wake the thread that waits for it."""
        if self._turn is not None:
            self._turn.set()

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call `tell()` when it is over: now, or on the group's thread. It must not raise."""
        self._to_tell.append(tell)
        if self.is_over:
            self.tell()

    def finish(self, error: GroupFailed | None = None) -> None:
        """Ends the posting, with an error or without."""
        if not self.is_over:
            self.error = error
            self.is_over = True
            if self._turn is not None:
                self._turn.set()
            if self._to_tell:  # who asks from now on is told by `when_over`
                if self.box is not None:
                    self.box.finished.append(self)
                else:
                    self.tell()

    def tell(self) -> None:
        """Tell all who asked for that."""
        while self._to_tell:
            try:
                tell = self._to_tell.pop()
            except IndexError:
                return  # another thread does it
            tell()


_MAKING = threading.Lock()
Key = tuple[int, int]
"""A message: the peer, and the sender's number for it."""


class Matching:
    """Postings and messages of one rank. `senders` and `receivers`, by peer, are the mailbox's."""

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        senders: Mapping[int, Sender],
        receivers: Mapping[int, Receiver],
        crowded: bool = False,
    ) -> None:
        """`crowded`: there are more ranks than processors."""
        self._crowded = crowded
        self._ranks = ranks
        self._rank = rank
        self._senders = senders
        self._receivers = receivers
        self.cause: GroupFailed | None = None
        """The first failure that a posting met: what peers are told when this rank leaves."""
        self.late: GroupFailed | None = None
        """What was wrong with a send that was buffered: an error of this rank's next call."""
        self.words: dict[int, GroupFailed] = {}
        """By peer: its own failure, in its words."""
        self._numbers = 0
        self.receives: list[Posting] = []
        """Those that no message has matched yet."""
        self._waiting: dict[int, deque[Parcel]] = {}
        self._accepted: dict[Key, Posting] = {}
        self._offered: dict[Key, Posting] = {}
        self._leaving: dict[Key, Posting] = {}  # sends that the system has not taken yet
        self._short: defaultdict[int, deque[int]] = defaultdict(deque)  # those yet to be buffered
        self._buffered: dict[Key, int] = {}  # of those that are, meanwhile: the bytes of their room
        self._silent: dict[int, str] = {}
        self._deaf: dict[int, str] = {}

    # -- postings ------------------------------------------------------------------------------

    def receive(self, posting: Posting) -> None:
        """A receive was posted."""
        self.receives.append(posting)
        self._match(posting)

    def send(self, posting: Posting, sender: Sender, alive: bool = True) -> None:
        """A send was posted; the connection to its peer is there. It is buffered if there is room,
        and the peer is `alive`. Raises Closed."""
        data, size = posting.data, len(posting.data)
        peer, number = posting.source, self._numbers
        self._numbers = number + 1
        text = posting.text.encode()[:TEXT_BYTES]
        if size > BUFFERED_BYTES:
            if size <= EAGER_BYTES:
                sender.eager(EAGER, number, posting.tag, text, data)
            else:
                sender.offer(number, posting.tag, text, data)
        elif alive and not self._short[peer] and sender.has_room(size or 1):
            sender.room -= size or 1
            sender.eager(BUFFERED, number, posting.tag, text, data)
            posting.finish()
            return
        else:
            self._short[peer].append(number)
            sender.eager(EAGER, number, posting.tag, text, data)
        self._offered[peer, number] = posting

    def has_room(self, peer: int) -> bool:
        """Ends the sends to this peer for which there is room now; whether there is for all."""
        short, sender = self._short[peer], self._senders[peer]
        while short:
            posting = self._offered.get((peer, short[0]))  # None: it is over by another way
            if posting is not None:
                size = len(posting.data) or 1
                if not sender.has_room(size):
                    return False
                sender.room -= size
                self._buffered[peer, short[0]] = size
                del self._offered[peer, short[0]]
                posting.finish()
            short.popleft()
        return True

    @property
    def has_pending(self) -> bool:
        """Whether a posting is not over."""
        return bool(self.receives or self._offered or self._accepted or self._leaving)

    @property
    def pending(self) -> list[Posting]:
        """The postings that are not over."""
        sends = (*self._offered.values(), *self._leaving.values())
        return [*self.receives, *sends, *self._accepted.values()]

    def expire(self, now: float) -> None:
        """End what is over by its deadline. Its memory is the caller's again."""
        for posting in self.pending:
            if now >= posting.deadline:
                posting.deadline = extended(posting.deadline)
        for posting in [one for one in self.receives if now >= one.deadline]:
            self.receives.remove(posting)
            self._fail_late(posting, "it has no partner")
        for table in (self._offered, self._leaving, self._accepted):
            for key in [key for key, one in table.items() if now >= one.deadline]:
                posting, progress = self._taken_from(table, key)
                if table is self._accepted:
                    self._receivers[key[0]].discard(key[1])
                else:
                    self._senders[key[0]].take_back(key[1])
                self._fail_late(posting, progress or "it has no partner")
        for peer in self._short:
            self.has_room(peer)  # for what waited behind one of these

    def end_all(self, error: GroupFailed) -> None:
        """End everything that is posted. Nothing may be sent or received any more but last
        words."""
        for sender in self._senders.values():
            sender.abandon()
        for peer, number in self._accepted:
            self._receivers[peer].discard(number)
        for posting in self.pending:
            posting.finish(error)
        for postings in (self._offered, self._leaving, self._accepted):
            postings.clear()
        self.receives.clear()

    # -- what the connections' ends say --------------------------------------------------------

    def accepted(self, peer: int, number: int, taken: int) -> None:
        """The peer has taken so many bytes of it: all, or none of a long one that may be sent."""
        if self._was_buffered(peer, number):
            return
        posting = self._offered.pop((peer, number), None)
        if posting is None:
            if number < self._numbers:
                return  # its deadline has passed: it was taken back
            raise BadFrame(f"message {number} was accepted, which was not offered")
        if taken == len(posting.data):
            posting.finish()
            self.has_room(peer)
            return
        self._leaving[peer, number] = posting
        key = (peer, number)
        self._senders[peer].add_body(number, posting.data, lambda: self._leaving.pop(key).finish())
        self._senders[peer].push()

    def refused(self, peer: int, number: int, text: str, buffered: bool) -> None:
        """The message does not match its receive, says `text`; `buffered`: it was, at once."""
        me = self._ranks[self._rank]
        posting = self._offered.pop((peer, number), None)
        if posting is not None:
            self.fail(posting, CallMismatch(f"rank {me} is in {text}"))
        elif self._was_buffered(peer, number) or buffered:
            error = CallMismatch(f"rank {me} was in {text}")
            self.late = self.late or error
            self.cause = self.cause or error
        self.has_room(peer)

    def _was_buffered(self, peer: int, number: int) -> bool:
        """Whether this message, which is no more under way, was buffered later: its room is given
        back."""
        size = self._buffered.pop((peer, number), 0)
        if size:
            self._senders[peer].room += size
            self.has_room(peer)
        return size > 0

    def arrived(self, peer: int, parcel: Parcel) -> None:
        """A message is here, or is offered."""
        for posting in self.receives:
            if posting.tag == parcel.tag and posting.peer in (peer, None):
                self.receives.remove(posting)
                self._deliver(peer, parcel, posting)
                return
        if isinstance(parcel.body, memoryview):
            parcel.body = bytes(parcel.body)
        self._waiting.setdefault(peer, deque()).append(parcel)

    def completed(self, peer: int, number: int) -> None:
        """A long message is in its place."""
        posting = self._accepted.pop((peer, number), None)
        if posting is not None:  # its deadline has not passed meanwhile
            posting.finish()

    def withdrawn(self, peer: int, number: int) -> None:
        """The message is not sent, or not to its end."""
        parcels = self._waiting.get(peer, deque())
        self._waiting[peer] = deque(one for one in parcels if one.number != number)
        posting = self._accepted.pop((peer, number), None)
        if posting is not None:
            rank = self._ranks[peer]
            text = f"rank {rank} gave up what it sent for {posting.what}: its timeout ran out"
            self.fail(posting, DeadlineExceeded(text))

    def takes_no_more(self, peer: int, payload: bytes) -> None:
        """The peer's mailbox has failed, as for the next one."""
        self.told(peer, payload)
        self.nothing_to(peer, "failed")

    def sends_no_more(self, peer: int, payload: bytes) -> None:
        self.told(peer, payload)
        self.nothing_from(peer, "failed")

    def told(self, peer: int, payload: bytes) -> None:
        """The peer's last words. Raises BadFrame."""
        self.words.setdefault(peer, failure_from(payload, self._ranks[peer]))

    # -- bringing them together ----------------------------------------------------------------

    def _match(self, posting: Posting) -> None:
        """Gives a receive the first message with its tag; ends it, if none is here or can come."""
        for peer in tuple(self._waiting) if posting.peer is None else (posting.peer,):
            for parcel in self._waiting.get(peer, ()):
                if parcel.tag == posting.tag:
                    self._waiting[peer].remove(parcel)
                    self.receives.remove(posting)
                    self._deliver(peer, parcel, posting)
                    return
        silent = self._silent
        if posting.peer in silent or (posting.peer is None and len(silent) == len(self._ranks) - 1):
            self.receives.remove(posting)
            peer = next(iter(silent)) if posting.peer is None else posting.peer
            self.fail(posting, self.loss(peer, silent[peer], posting))

    def _deliver(self, peer: int, parcel: Parcel, posting: Posting) -> None:
        posting.source = peer
        receiver = self._receivers[peer]
        try:
            if parcel.total != len(posting.data) or parcel.text != posting.text:
                me, rank = self._ranks[self._rank], self._ranks[peer]
                sent = parcel.text or f"{parcel.total} bytes"
                text = f"rank {me} is in {posting.what}, but rank {rank} sent {sent}"
                self.fail(posting, CallMismatch(text))
                what = message("send", me, parcel.tag, sent)
                receiver.refuse(parcel, f"{what}, but rank {me} is in {posting.what}")
            elif parcel.body is not None:
                posting.data[:] = parcel.body
                posting.finish()
                receiver.accept(parcel, None)
            # Else this rank's processor copies out while the sender's, which waits, copies in.
            elif (self._crowded or self._offered or self._leaving) and receiver.read(
                parcel, posting.data
            ):
                posting.finish()
                receiver.accept(parcel, None)
            else:
                self._accepted[peer, parcel.number] = posting
                receiver.accept(parcel, posting.data)
        except Closed as error:  # the poll sees it as well, and ends the rest
            self._accepted.pop((peer, parcel.number), None)
            if not posting.is_over:
                self.fail(posting, self.loss(peer, str(error), posting))

    # -- endings -------------------------------------------------------------------------------

    def nothing_from(self, peer: int, reason: str) -> None:
        """No message comes from this peer any more; what it only offered neither."""
        self._silent.setdefault(peer, reason)
        here, lost = self._waiting.get(peer, deque()), set[int]()
        kept = self._waiting[peer] = deque[Parcel]()
        for one in here:
            if one.body is None:
                lost.add(one.tag)
            elif one.tag not in lost:  # else it would take the place of one that never comes
                kept.append(one)
        self._lose(peer, reason, self._accepted)
        for posting in tuple(self.receives):
            self._match(posting)

    def nothing_to(self, peer: int, reason: str) -> None:
        """This peer takes nothing any more."""
        self._deaf.setdefault(peer, reason)
        self._lose(peer, reason, self._offered, self._leaving)

    def _lose(self, peer: int, reason: str, *tables: dict[Key, Posting]) -> None:
        for table in tables:
            for key in [key for key in table if key[0] == peer]:
                posting, progress = self._taken_from(table, key)
                self.fail(posting, self.loss(peer, reason, posting, progress))

    def listens(self, peer: int) -> bool:
        """Whether the peer may take something."""
        return peer not in self._deaf and peer not in self.words

    def check_listens(self, peer: int) -> None:
        """Raises Closed where the peer takes nothing any more."""
        if peer in self._deaf or peer in self.words:
            raise Closed(self._deaf.get(peer, "failed"), orderly=False)

    def loss(self, peer: int, reason: str, posting: Posting, progress: str = "") -> GroupFailed:
        """Returns the error that the loss of the peer means for the posting: what the peer said of
        it, or else the peer's own fault."""
        told = self.words.get(peer)
        if told is not None:
            return told
        rank = self._ranks[peer]
        more = f"; {progress}" if progress else ""
        text = f"rank {rank} was lost in {posting.what}: it {reason}{more}"
        return PeerLost(text, rank, (rank, self._ranks[self._rank]))

    def fail(self, posting: Posting, error: GroupFailed) -> None:
        """Ends the posting with an error, which peers are told when this rank leaves."""
        self.cause = self.cause or error
        posting.finish(error)

    def _fail_late(self, posting: Posting, progress: str) -> None:
        culprit = None if posting.peer is None else self._ranks[posting.peer]
        text = f"the timeout of {posting.what} ran out: {progress}{timed_out(posting.deadline)}"
        self.fail(posting, DeadlineExceeded(text, culprit))

    def _taken_from(self, table: dict[Key, Posting], key: Key) -> tuple[Posting, str]:
        """Removes a posting; it, and how much of a long message has moved."""
        posting, (peer, number), progress = table.pop(key), key, ""
        rank, total = self._ranks[peer], len(posting.data)
        if table is self._accepted:
            received = self._receivers[peer].received_bytes(number)
            progress = f"rank {rank} sent {received} of {total} bytes"
        elif table is self._leaving:
            taken = total - self._senders[peer].unsent_bytes(number)
            progress = f"{taken} of {total} bytes were sent to rank {rank}"
        return posting, progress
