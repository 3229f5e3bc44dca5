"""Point-to-point messages of one group: posted by any thread, moved by one thread of the group.

Each direction between two ranks is a connection of its own, dialled by the sender when it first
sends, so neither side waits for the other to be ready. Which message goes to which receive is
`matching`'s part; here are the thread, the connections, and what becomes of a peer that ends.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .. import limits
from ..base.background_thread import BackgroundThread
from ..base.call_text import message
from ..errors import Aborted, CorruptFrame, DeadlineExceeded, GroupFailed
from .base import Connect
from .frames import BadFrame, Closed
from .link import last_words
from .matching import Matching, Posting
from .parcels import Receiver, Sender

_GONE = select.POLLRDHUP | select.POLLHUP
_now = time.monotonic


@dataclass(slots=True)
class _Doubt:
    """A peer from which nothing may come any more. `ended`: it has left, for certain."""

    reason: str
    until: float
    ended: bool


class Mailbox:
    """The messages of one rank of a group."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        dial: Connect,
        alive: Mapping[int, int],
        calling: Callable[[int], bool],
        *,
        checked: bool = False,
    ) -> None:
        """`alive`: for each peer, the descriptor of a connection that ends when the peer does.
        `calling`: whether a connection that the peer dials may still be given to `accept`.
        `checked`: send a checksum with every frame."""
        self.name = name
        self.ranks = tuple(ranks)
        self.rank = rank
        self._dial = dial
        self._checked = checked
        self._calling = calling
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._posted: deque[Posting] = deque()
        self._dialled: deque[tuple[int, socket.socket]] = deque()
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        self._matching = Matching(self.ranks, rank, self._senders, self._receivers)
        self._doubts: dict[int, _Doubt] = {}
        self._error: GroupFailed | None = None
        self._told = False
        self._closing = False
        self._close_by = float("inf")
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._peers: dict[int, tuple[str, int]] = {}
        for peer, descriptor in alive.items():
            self._poll.register(descriptor, _GONE)
            self._peers[descriptor] = ("life", peer)
        self._thread: BackgroundThread | None = None

    # -- any thread ----------------------------------------------------------------------------

    def post_send(
        self, peer: int, tag: int, data: memoryview, deadline: float, text: str = ""
    ) -> Posting:
        """Send `data` to a peer. Over when a receive has taken it; it must not change before."""
        what = message("send", self.ranks[peer], tag, text or f"{len(data)} bytes")
        return self._post(Posting(True, peer, tag, data, deadline, text, what))

    def post_receive(
        self, peer: int | None, tag: int, into: memoryview, deadline: float, text: str = ""
    ) -> Posting:
        """Receive the peer's next message with this tag; None: the next of anybody's."""
        source = None if peer is None else self.ranks[peer]
        what = message("recv", source, tag, text or f"{len(into)} bytes")
        return self._post(Posting(False, peer, tag, into, deadline, text, what))

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
        """The group has failed: everything posted ends with this error, and the peers that this
        rank has exchanged messages with, or that come later, are told."""
        with self._lock:
            self._error = self._error or error
            self._start()

    def close(self) -> None:
        """Send what is queued, then leave. If a message has failed, peers are told why."""
        with self._lock:
            if self._wake < 0:
                return
            self._closing = True
            self._close_by = _now() + (limits.DRAIN_S if self._error is None else limits.TELL_S)
            thread = self._thread
            os.eventfd_write(self._wake, 1)
        if thread is not None and not thread.is_here():
            thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Close the connections, and send nothing."""
        for end in (*self._senders.values(), *self._receivers.values()):
            end.connection.close()
        for _peer, connection in self._dialled:
            connection.close()
        with self._starting:
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1

    def _post(self, posting: Posting) -> Posting:
        with self._lock:
            if self._error is not None or self._closing:
                posting.finish(self._error or self._destroyed())
                return posting
            self._posted.append(posting)
            self._start()
        return posting

    def _destroyed(self) -> Aborted:
        return Aborted(f"group {self.name!r} was destroyed")

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                name = f"distcore messages of {self.name}"
                self._thread = BackgroundThread(self._run, name)
                self._thread.start()
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # -- the group's own thread ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # nobody must wait for a thread that has ended
            kind = f"{type(error).__name__}: {error}"
            text = f"group {self.name!r}: the thread that moves the messages ended by {kind}"
            with self._lock:
                self._error = GroupFailed(text, self.ranks[self.rank])
                self._end_all(self._error)
            raise

    def _serve(self) -> None:
        while True:
            self._take_posted()
            error = self._error
            if error is not None:
                self._end_all(error)
            self._register()
            if self._closing and not self._posted and self._is_through():
                with self._lock:
                    self._end_all(self._error or self._destroyed())
                return
            for descriptor, _event in self._poll.poll(self._timeout_ms()):
                self._happened(descriptor)
            now = _now()
            self._settle_doubts(now)
            self._matching.expire(now)

    def _take_posted(self) -> None:
        while self._dialled:
            peer, connection = self._dialled.popleft()
            receiver = Receiver(connection, self._checked, peer, self._matching)
            self._receivers[peer] = receiver
            failed = self._error or self._matching.cause
            if self._told and failed is not None:  # it came after all others were told
                _tell_end(receiver, failed)
        while self._posted and self._error is None:
            posting = self._posted.popleft()
            if posting.sends:
                self._begin_send(posting)
            else:
                self._matching.receive(posting)

    def _begin_send(self, posting: Posting) -> None:
        matching, peer = self._matching, posting.source
        try:
            matching.check_listens(peer)
            sender = self._senders.get(peer)
            if sender is None:
                # Half a minute for a peer that has no connection to this rank, yet, to take one.
                sender = self._call(peer, min(posting.deadline, _now() + 30.0))
            matching.send(posting, sender)
            sender.push()
        except Closed as error:
            if peer in self._senders:
                try:
                    self._senders[peer].pull()  # it may have said why
                except (Closed, BadFrame):
                    pass
            matching.fail_send(posting, matching.loss(peer, str(error), posting))
        except GroupFailed as error:
            told = matching.words.get(peer)
            what = type(error)(f"{posting.what}: {error}", error.culprit, error.link)
            matching.fail_send(posting, told or what)

    def _call(self, peer: int, deadline: float) -> Sender:
        connection = self._dial(peer, deadline)
        sender = self._senders[peer] = Sender(connection, self._checked, peer, self._matching)
        return sender

    def _is_through(self) -> bool:
        """On closing: whether all was said."""
        if not self._told and self._matching.cause is not None and self._is_idle():
            self._tell_everybody(self._matching.cause)
            self._register()
        return self._is_idle() or _now() >= self._close_by

    def _is_idle(self) -> bool:
        return not any(end.wants_to_write for end in self._ends())

    def _tell_everybody(self, cause: GroupFailed) -> None:
        """This rank leaves after a failure: those who wait for it are to blame whoever failed
        first, those too that never got a message from it."""
        until = _now() + limits.TELL_S
        left = {peer for side, peer in self._peers.values() if side == "life"}
        left -= self._senders.keys() | self._matching.words.keys()
        # One that is stopped must not take the time of all.
        late = [
            one for one in left if not self._reached(one, min(until, _now() + limits.TELL_S / 10))
        ]
        for behind, peer in enumerate(late):
            left_s = max(0.0, until - _now())
            self._reached(peer, _now() + left_s / (len(late) - behind))
        self._tell(cause)
        self._close_by = min(self._close_by, until)

    def _reached(self, peer: int, until: float) -> bool:
        """Whether there is a connection to it, or never will be one."""
        try:
            self._call(peer, until)
        except DeadlineExceeded:
            return False
        except GroupFailed:
            pass
        return True

    def _tell(self, error: GroupFailed) -> None:
        self._told = True
        for end in self._ends():
            if end.connection.fileno() >= 0:
                _tell_end(end, error)

    def _ends(self) -> list[Sender | Receiver]:
        return [*self._senders.values(), *self._receivers.values()]

    def _end_all(self, error: GroupFailed) -> None:
        self._matching.end_all(error)
        while self._posted:
            self._posted.popleft().finish(error)
        if not self._told and self._error is not None:
            self._tell(error)

    # -- what happens --------------------------------------------------------------------------

    def _register(self) -> None:
        reads = 0 if self._error is not None else select.POLLIN
        for side, ends in (("to", self._senders), ("from", self._receivers)):
            for peer, end in ends.items():
                descriptor = end.connection.fileno()
                events = reads | (select.POLLOUT if end.wants_to_write else 0)
                if descriptor >= 0 and events:
                    self._peers[descriptor] = (side, peer)
                    self._poll.register(descriptor, events)
                elif descriptor in self._peers:
                    self._forget(descriptor)

    def _happened(self, descriptor: int) -> None:
        if descriptor == self._wake:
            os.eventfd_read(self._wake)
            return
        side, peer = self._peers[descriptor]
        if side == "life":
            self._life_ended(descriptor, peer)
            return
        end: Sender | Receiver = self._senders[peer] if side == "to" else self._receivers[peer]
        try:
            if self._error is None:
                end.pull()  # first: what a peer said before it went is worth reading
            end.push()
            if side == "to" and peer in self._matching.words:
                self._doubt(peer, "failed", ended=False)
        except Closed as error:
            self._forget(descriptor)
            end.connection.close()
            if side == "to":
                self._matching.nothing_to(peer, str(error))
                self._doubt(peer, str(error), ended=False)
            else:
                self._matching.nothing_from(peer, str(error))
            end.give_up()
        except BadFrame as error:
            me, rank = self.ranks[self.rank], self.ranks[peer]
            text = f"on the connection from rank {rank} to rank {me}: {error}"
            self._error = self._error or CorruptFrame(text, rank, (rank, me))

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._peers[descriptor]

    def _life_ended(self, descriptor: int, peer: int) -> None:
        self._forget(descriptor)
        payload = last_words(descriptor)
        if payload is not None:
            try:
                self._matching.told(peer, payload)
            except BadFrame:
                pass
        self._doubt(peer, "closed the connection", ended=True)

    def _doubt(self, peer: int, reason: str, ended: bool) -> None:
        doubt = self._doubts.setdefault(peer, _Doubt(reason, _now() + limits.LAST_WORDS_S, ended))
        if ended:
            doubt.ended = True
            doubt.until = _now() + limits.CALLER_S

    def _settle_doubts(self, now: float) -> None:
        """A peer may have ended behind messages that are not here yet: its own connection's end
        tells that they are. Or that connection is on its way: the listener has it, or had it."""
        for peer, doubt in list(self._doubts.items()):
            if doubt.ended and peer in self._receivers:
                del self._doubts[peer]
                continue
            over = now >= doubt.until
            if doubt.ended and not self._calling(peer):
                # Asked in this order: from there it goes here.
                over = all(one != peer for one, _connection in self._dialled)
            if over:
                del self._doubts[peer]
                self._matching.nothing_from(peer, doubt.reason)

    def _timeout_ms(self) -> int:
        now = _now()
        until = min(
            now + limits.LONGEST_WAIT_S,
            self._close_by,
            *(posting.deadline for posting in self._matching.pending),
            *(
                now + limits.MESSAGE_PAUSE_S if doubt.ended else doubt.until
                for doubt in self._doubts.values()
            ),
        )
        return max(0, int((until - now) * 1000) + 1)


def _tell_end(end: Sender | Receiver, error: GroupFailed) -> None:
    end.tell(error)
    try:
        end.push()
    except Closed:
        end.give_up()
