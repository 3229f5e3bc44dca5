"""Point-to-point messages of one group: posted by any thread, moved by one thread of the group.

A receive takes the first message with its tag from its peer (or from anybody), in the order in
which the peer sent them. Each direction between two ranks is a connection of its own, dialled by
the sender when it first sends, so neither side waits for the other to be ready.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..errors import Aborted, CallMismatch, CorruptFrame, DeadlineExceeded, GroupFailed, PeerLost
from .frames import TEXT_BYTES, BadFrame, Ended
from .parcels import EAGER_BYTES, Parcel, Receiver, Sender
from .posting import Posting

Dial = Callable[[int, float], socket.socket]
"""(peer, deadline by time.monotonic()) -> an authenticated connection to that group rank."""

_SLICE_S = 60.0
_DIAL_S = 30.0
_DRAIN_S = 10.0
"""How long `close` waits for peers to take what was sent to them."""
_LAST_WORDS_S = 0.8
"""How long after a peer's end a connection that it dialled may still come from the listener."""
_GONE = select.POLLRDHUP | select.POLLHUP
_now = time.monotonic


class Mailbox:
    """The messages of one rank of a group."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        dial: Dial,
        alive: Mapping[int, int] | None = None,
    ) -> None:
        """`alive`: for each peer, the descriptor of a connection that ends when the peer does."""
        self.name = name
        self.ranks = tuple(ranks)
        self.rank = rank
        self._dial = dial
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._posted: deque[Posting] = deque()
        self._dialled: deque[tuple[int, socket.socket]] = deque()
        self._receives: list[Posting] = []
        self._waiting: dict[int, deque[Parcel]] = {}
        self._offered: dict[int, Posting] = {}
        self._accepted: dict[tuple[int, int], Posting] = {}
        self._leaving: dict[int, Posting] = {}  # sends that the system has not taken yet
        self._numbers = 0
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        self._lost: dict[int, str] = {}
        self._leavers: dict[int, float] = {}
        self._error: GroupFailed | None = None
        self._closing = False
        self._close_by = float("inf")
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._peers: dict[int, tuple[str, int]] = {}
        for peer, descriptor in (alive or {}).items():
            self._poll.register(descriptor, _GONE)
            self._peers[descriptor] = ("life", peer)
        self._thread: threading.Thread | None = None

    # -- any thread ----------------------------------------------------------------------------

    def post_send(
        self, peer: int, tag: int, data: memoryview, deadline: float, text: str = ""
    ) -> Posting:
        """Send `data` to a peer. Over when a receive has taken it; it must not change before."""
        what = f"send(dst={self.ranks[peer]}, {text or f'{len(data)} bytes'}, tag={tag})"
        return self._post(Posting(peer, tag, data, deadline, text, what))

    def post_receive(
        self, peer: int | None, tag: int, into: memoryview, deadline: float, text: str = ""
    ) -> Posting:
        """Receive the peer's next message with this tag; None: the next of anybody's."""
        source = "any" if peer is None else self.ranks[peer]
        what = f"recv(src={source}, {text or f'{len(into)} bytes'}, tag={tag})"
        posting = Posting(peer, tag, into, deadline, text, what)
        posting.source = -1
        return self._post(posting)

    def accept(self, peer: int, connection: socket.socket) -> bool:
        """A peer has dialled; whether its connection is taken. Never waits: the listener that
        calls this serves all groups, and the group's thread may be dialling that very peer."""
        if self._closing:
            return False
        self._dialled.append((peer, connection))
        self._start()
        return True

    def abort(self, reason: str) -> None:
        """End everything that is posted, and everything posted later, with Aborted."""
        self.fail(Aborted(reason))

    def fail(self, error: GroupFailed) -> None:
        """The group has failed: everything posted ends with this error."""
        with self._lock:
            self._error = self._error or error
            self._start()

    def close(self) -> None:
        """Send what is queued, then leave."""
        with self._lock:
            if self._wake < 0:
                return
            self._closing = True
            self._close_by = _now() + _DRAIN_S
            thread = self._thread
            os.eventfd_write(self._wake, 1)
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.let_go()

    def let_go(self) -> None:
        """Close the connections, and send nothing."""
        for sender in self._senders.values():
            sender.connection.close()
        for receiver in self._receivers.values():
            receiver.connection.close()
        for _peer, connection in self._dialled:
            connection.close()
        with self._starting:
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1

    def _post(self, posting: Posting) -> Posting:
        with self._lock:
            if self._error is not None or self._closing:
                posting.finish(self._error or Aborted(f"group {self.name!r} was destroyed"))
                return posting
            self._posted.append(posting)
            self._start()
        return posting

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                name = f"distcore messages of {self.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # -- the group's own thread ----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                self._take_posted()
                self._register()
                if self._error is not None:
                    self._end_all(self._error)
                idle = not any(sender.wants_to_write for sender in self._senders.values())
                over = idle or self._error is not None or _now() >= self._close_by
                if self._closing and over:
                    self._end_all(Aborted(f"group {self.name!r} was destroyed"))
                    return
            events = self._poll.poll(self._patience_ms())
            with self._lock:
                for descriptor, _event in events:
                    self._happened(descriptor)
                self._check_clock()

    def _take_posted(self) -> None:
        while self._dialled:
            peer, connection = self._dialled.popleft()
            self._receivers[peer] = Receiver(
                connection, partial(self._arrived, peer), partial(self._completed, peer)
            )
        while self._posted:
            posting = self._posted.popleft()
            if posting.what.startswith("send"):
                self._begin_send(posting)
            else:
                self._receives.append(posting)
                self._match()

    def _begin_send(self, posting: Posting) -> None:
        peer = posting.peer
        assert peer is not None
        number = self._numbers
        self._numbers += 1
        text = posting.text.encode()[:TEXT_BYTES]
        try:
            sender = self._senders.get(peer)
            if sender is not None and sender.connection.fileno() < 0:
                raise Ended(self._lost[peer], orderly=False)
            if sender is None:
                connection = self._dial(peer, min(posting.deadline, _now() + _DIAL_S))
                sender = Sender(connection, self._may_send, self._refused)
                self._senders[peer] = sender
            self._offered[number] = posting
            if len(posting.data) <= EAGER_BYTES:
                sender.eager(number, posting.tag, text, posting.data)
            else:
                sender.offer(number, posting.tag, text, len(posting.data))
            sender.push()
        except (Ended, GroupFailed) as error:
            self._offered.pop(number, None)
            posting.finish(self._loss(peer, str(error), posting))

    def _may_send(self, number: int) -> None:
        posting = self._offered.pop(number, None)
        if posting is None or posting.peer is None:
            if number < self._numbers:
                return  # its deadline has passed, and its memory is the caller's again
            raise BadFrame(f"message {number} was accepted, which was not offered")
        if len(posting.data) <= EAGER_BYTES:
            posting.finish()
            return
        sender = self._senders[posting.peer]
        sender.body(number, posting.data)
        self._leaving[number] = posting
        sender.when_sent(partial(self._taken, number))
        sender.push()

    def _taken(self, number: int) -> None:
        posting = self._leaving.pop(number, None)
        if posting is not None:  # not given up since
            posting.finish()

    def _refused(self, number: int, text: str) -> None:
        posting = self._offered.pop(number, None)
        if posting is not None and posting.peer is not None:
            me, rank = self.ranks[self.rank], self.ranks[posting.peer]
            message = f"rank {me} is in {posting.what}, but rank {rank} is in {text}"
            posting.finish(CallMismatch(message))

    def _arrived(self, peer: int, parcel: Parcel) -> None:
        self._waiting.setdefault(peer, deque()).append(parcel)
        self._match()

    def _completed(self, peer: int, number: int) -> None:
        posting = self._accepted.pop((peer, number), None)
        if posting is not None:  # its deadline has not passed meanwhile
            posting.finish()

    def _match(self) -> None:
        """Bring receives and messages together, each in the order it came."""
        for posting in list(self._receives):
            peers = self._waiting if posting.peer is None else (posting.peer,)
            for peer in tuple(peers):
                parcels = self._waiting.get(peer, ())
                tag = posting.tag % 2**64
                parcel = next((one for one in parcels if one.tag == tag), None)
                if parcel is not None:
                    self._waiting[peer].remove(parcel)
                    self._receives.remove(posting)
                    self._deliver(peer, parcel, posting)
                    break
            else:
                self._gone_before(posting)

    def _deliver(self, peer: int, parcel: Parcel, posting: Posting) -> None:
        posting.source = peer
        receiver = self._receivers[peer]
        try:
            if parcel.total != len(posting.data) or parcel.text != posting.text:
                me, rank = self.ranks[self.rank], self.ranks[peer]
                sent = parcel.text or f"{parcel.total} bytes"
                text = f"rank {me} is in {posting.what}, but rank {rank} sent {sent}"
                posting.finish(CallMismatch(text))
                receiver.refuse(parcel.number, posting.what)
            elif parcel.body is not None:
                posting.data[:] = parcel.body
                posting.finish()
                receiver.accept(parcel.number, None)
            else:
                self._accepted[peer, parcel.number] = posting
                receiver.accept(parcel.number, posting.data)
        except Ended as error:  # the poll sees it as well, and ends the rest
            self._accepted.pop((peer, parcel.number), None)
            posting.finish(self._loss(peer, self._lost.get(peer, str(error)), posting))

    def _gone_before(self, posting: Posting) -> None:
        """A receive for which no message is here: can one still come?"""
        lost = self._lost
        if posting.peer is None:
            gone = len(lost) == len(self.ranks) - 1
        else:
            gone = posting.peer in lost
        if gone and self._receives:
            self._receives.remove(posting)
            peer = next(iter(lost)) if posting.peer is None else posting.peer
            posting.finish(self._loss(peer, lost[peer], posting))

    # -- what happens --------------------------------------------------------------------------

    def _register(self) -> None:
        for side, ends in (("to", self._senders), ("from", self._receivers)):
            for peer, end in ends.items():
                descriptor = end.connection.fileno()
                if descriptor >= 0 and not (
                    side == "from" and ("gone", peer) in self._peers.values()
                ):
                    self._peers[descriptor] = (side, peer)
                    events = select.POLLIN | (select.POLLOUT if end.wants_to_write else 0)
                    self._poll.register(descriptor, events)

    def _happened(self, descriptor: int) -> None:
        if descriptor == self._wake:
            os.eventfd_read(self._wake)
            return
        side, peer = self._peers[descriptor]
        if side == "life":
            self._forget(descriptor)
            # Its own connection, if there is one, has its last messages, and ends as well.
            self._leavers[peer] = _now() + _LAST_WORDS_S
            return
        end: Sender | Receiver = self._senders[peer] if side == "to" else self._receivers[peer]
        try:
            end.pull()  # first: what a peer said before it went is worth reading
            end.push()
        except Ended as error:
            self._hang_up(descriptor, end)
            self._ended(peer, str(error))
        except BadFrame as error:
            self._hang_up(descriptor, end)  # it is never read again, and the peer sees it
            rank = self.ranks[peer]
            self._error = CorruptFrame(f"in a message from rank {rank}: {error}", rank)

    def _hang_up(self, descriptor: int, end: Sender | Receiver) -> None:
        self._forget(descriptor)
        end.connection.close()
        end.give_up()

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._peers[descriptor]

    def _ended(self, peer: int, reason: str) -> None:
        """Nothing comes from this peer any more, and it takes nothing."""
        self._lost.setdefault(peer, reason)
        for key in [key for key in self._accepted if key[0] == peer]:
            posting = self._accepted.pop(key)
            posting.finish(self._loss(peer, reason, posting))
        for sends in (self._offered, self._leaving):
            for number in [n for n, posting in sends.items() if posting.peer == peer]:
                posting = sends.pop(number)
                posting.finish(self._loss(peer, reason, posting))
        self._match()

    def _loss(self, peer: int, reason: str, posting: Posting) -> GroupFailed:
        rank = self.ranks[peer]
        return PeerLost(f"rank {rank} was lost in {posting.what}: it {reason}", rank)

    def _pending(self) -> list[Posting]:
        sends = (*self._offered.values(), *self._leaving.values())
        return [*self._receives, *sends, *self._accepted.values()]

    def _patience_ms(self) -> int:
        now = _now()
        deadlines = (posting.deadline for posting in self._pending())
        until = min(now + _SLICE_S, self._close_by, *self._leavers.values(), *deadlines)
        return max(0, int((until - now) * 1000) + 1)

    def _check_clock(self) -> None:
        now = _now()
        for peer in [peer for peer, until in self._leavers.items() if now >= until]:
            del self._leavers[peer]
            if peer not in self._receivers:
                self._ended(peer, "closed the connection")
        late = [posting for posting in self._pending() if now >= posting.deadline]
        for posting in late:
            who = None if posting.peer is None else self.ranks[posting.peer]
            posting.finish(
                DeadlineExceeded(f"the timeout of {posting.what} ran out: it has no partner", who)
            )
        if late:
            self._drop_finished()

    def _drop_finished(self) -> None:
        self._receives = [one for one in self._receives if not one.done]
        self._offered = {n: one for n, one in self._offered.items() if not one.done}
        self._leaving = {n: one for n, one in self._leaving.items() if not one.done}
        self._accepted = {k: one for k, one in self._accepted.items() if not one.done}

    def _end_all(self, error: GroupFailed) -> None:
        for posting in self._pending():
            posting.finish(error)
        self._drop_finished()
