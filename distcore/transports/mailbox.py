"""Point-to-point messages of one group: posted by any thread, moved by the one that waits for them,
and by one thread of the group.

To a rank of this host there is a `lane`, which a thread of the program that waits looks into
itself. To others, each direction is a connection of its own, dialled by the sender when it first
sends, so neither side waits for the other to be ready; the group's thread alone serves those. It
serves the lanes as well while nobody waits and something is posted: `README.md` says when. Which
message goes to which receive is `matching`'s part; here are the threads, the connections, and what
becomes of a peer that ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .. import limits
from ..base.background_thread import BackgroundThread
from ..base.call_text import message
from ..errors import Aborted, CorruptFrame, DeadlineExceeded, GroupFailed
from .base import Connect
from .frames import BadFrame, Closed
from .lane import ANSWERS, MESSAGES, NOBODY, THREAD, WAITER, Lane, may_sleep
from .link import last_words
from .matching import Matching, Posting
from .parcels import BUFFERED_BYTES, Receiver, Sender
from .shared_memory import new_bells
from .yielding import Yielding

_NO_LANES: Mapping[int, Lane] = MappingProxyType({})
_GONE = select.POLLRDHUP | select.POLLHUP
_now = time.monotonic


@dataclass(slots=True)
class _Doubt:
    """A peer from which nothing may come any more. `ended`: it has left, for certain."""

    reason: str
    until: float
    ended: bool


class _Moving:
    """The end of a step of a mailbox, whose lock is held: the waiter hears if it is over. The lock
    is taken by a `with` of its own, which no signal's handler comes in between."""

    def __init__(self, box: Mailbox) -> None:
        self._box = box

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        box = self._box
        if error is not None:
            # Of a signal's handler, perhaps, in the middle of a step: nobody knows how far.
            box._break(error)
        waiter = box._waiter
        ended = waiter is not None and waiter.is_over and box._wake >= 0
        if ended and box._waiting_thread != threading.get_ident():
            os.eventfd_write(box._waiter_bell, 1)
        if box.finished:
            box._rouse()


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
        lanes: Mapping[int, Lane] = _NO_LANES,
        bells: tuple[int, int] | None = None,
    ) -> None:
        """`alive`: for each peer, the descriptor of a connection that ends when the peer does.
        `calling`: whether a connection that the peer dials may still be given to `accept`.
        `checked`: send a checksum with every frame. `lanes`: by peer, to those of this host;
        `bells`: the eventfds by which those wake this rank, which are closed with the mailbox."""
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
        cores = os.cpu_count() or 1
        crowded = len(ranks) > cores
        self._yielding = Yielding(limits.LANE_SPIN_S if len(ranks) <= 2 * cores else 0.0)
        self._matching = Matching(self.ranks, rank, self._senders, self._receivers, crowded)
        self._doubts: dict[int, _Doubt] = {}
        self._error: GroupFailed | None = None
        self._told = False
        self._closing = False
        self._half_closed: set[int] = set()
        self._close_by = float("inf")
        self._lanes = dict(lanes)
        self._busy: list[Lane] = []  # through which something has come, or was sent
        for peer, lane in lanes.items():
            lane.attach(peer, self._matching)
            self._senders[peer], self._receivers[peer] = lane.sender, lane.receiver
        self._waiter_bell, self._wake = bells or new_bells()
        self.finished: deque[Posting] = deque()
        self._moving = _Moving(self)
        self._waiter: Posting | None = None
        self._waiting_thread = 0
        self._in_line: list[Posting] = []
        self._posts = self._posts_seen = self._batches = 0
        self._resting = self._has_slept = False
        self._pause_s = self._rest_until = 0.0
        self._bell_poll = select.poll()
        self._bell_poll.register(self._waiter_bell, select.POLLIN)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._peers: dict[int, tuple[str, int]] = {}
        self._lives: dict[int, select.poll] = {}
        for peer, descriptor in alive.items():
            self._poll.register(descriptor, _GONE)
            self._peers[descriptor] = ("life", peer)
            self._lives[peer] = select.poll()
            self._lives[peer].register(descriptor, _GONE)
        self._thread: BackgroundThread | None = None

    # -- any thread ----------------------------------------------------------------------------

    def post_send(
        self, peer: int, tag: int, data: memoryview, deadline: float, text: str = ""
    ) -> Posting:
        """Send `data` to a peer. Over when a receive has taken it, or it is buffered; it must not
        change before."""
        what = message("send", self.ranks[peer], tag, text or f"{len(data)} bytes")
        return self._post(Posting(True, peer, tag, data, deadline, text, what, self, source=peer))

    def post_receive(
        self, peer: int | None, tag: int, into: memoryview, deadline: float, text: str = ""
    ) -> Posting:
        """Receive the peer's next message with this tag; None: the next of anybody's."""
        source = None if peer is None else self.ranks[peer]
        what = message("recv", source, tag, text or f"{len(into)} bytes")
        return self._post(Posting(False, peer, tag, into, deadline, text, what, self))

    def accept(self, peer: int, connection: socket.socket) -> bool:
        """A peer has dialled; whether its connection is taken. Never waits: the listener that
        calls this serves all groups, and the group's thread may be dialling that very peer."""
        if self._closing or peer in self._lanes:
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
            self._resting = False
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
        for end in self._ends():
            end.connection.close()
        for _peer, connection in self._dialled:
            connection.close()
        with self._starting:
            if self._wake >= 0:
                os.close(self._wake)
                os.close(self._waiter_bell)
                self._wake = -1

    def _post(self, posting: Posting) -> Posting:
        with self._lock, self._moving:
            if self._error is not None or self._closing:
                posting.finish(self._error or self._destroyed())
                return posting
            if self._matching.late is not None:
                posting.finish(self._matching.late)
                self._matching.late = None
                return posting
            lane = self._lanes.get(posting.peer)  # type: ignore[arg-type]
            if posting.sends and lane is None:
                self._posted.append(posting)
                self._start()
                return posting
            if self._thread is None:
                self._start()
            self._posts += 1
            if posting.sends and lane is not None:
                if lane.has_news:  # room, or that the peer has left
                    self._advance(lane)
                self._begin_send(posting)
            else:
                self._matching.receive(posting)
                self._rouse_waiter()  # it may let messages lie
            if lane is not None and lane not in self._busy:
                self._use(lane)
            for one in self._busy if not self._batches else ():
                if one.said:  # a receive from any source may have answered any of them
                    one.ring()
            if lane is None and len(self._lanes) < len(self.ranks) - 1:
                self._rouse()  # it serves the sockets
            elif not posting.is_over and posting.deadline < self._rest_until:
                self._rouse()
            elif self._resting:
                self._hand_over()
        return posting

    def begin_batch(self) -> None:
        """Until `end_batch` no peer is woken for what is posted."""
        with self._lock:
            self._batches += 1

    def end_batch(self) -> None:
        """Wakes each peer once for all that was posted."""
        with self._lock, self._moving:
            self._batches -= 1
            for one in self._busy:
                one.ring()

    # -- the thread that waits -----------------------------------------------------------------

    def _break(self, error: BaseException) -> None:
        kind = f"{type(error).__name__}: {error}"
        text = f"group {self.name!r}: what moves the messages was ended by {kind}"
        self._error = self._error or GroupFailed(text, self.ranks[self.rank])
        self._rouse()

    def look(self) -> None:
        """Move what can be moved at once."""
        if self._busy and not self._lock.locked():
            with self._lock, self._moving:
                self._advance_all()
                if self._resting:
                    self._hand_over()

    def wait(self, posting: Posting, timeout_s: float | None) -> bool:
        """Move messages until this one is over; whether it was in time."""
        now = _now()
        until = float("inf") if timeout_s is None else now + timeout_s
        self._look_until(posting, min(until, self._yielding.until(now) if self._lanes else now))
        while not posting.is_over:
            with self._lock, self._moving:
                mine = bool(self._lanes) and self._waiter is None and self._wake >= 0
                if mine:
                    self._waiter, self._waiting_thread = posting, threading.get_ident()
                else:
                    self._in_line.append(posting)
                    self._rouse_waiter()  # it may let answers lie
            try:
                if mine:
                    self._move_until(posting, until)
                else:
                    left_s = None if timeout_s is None else max(0.0, until - _now())
                    posting.wait_for_turn(left_s)
            finally:
                with self._lock, self._moving:
                    if mine:
                        self._waiter = None
                        self._want_nobody()
                    else:
                        self._in_line.remove(posting)
                    if self._waiter is None and self._in_line:
                        self._in_line[0].give_turn()
                    if self._resting:
                        self._hand_over()
            if _now() >= until:
                break
        return posting.is_over

    def _look_until(self, posting: Posting, until: float) -> None:
        """Look into the lanes again and again. Peers need to ring nobody meanwhile."""
        while True:
            with self._lock, self._moving:
                self._want_nobody()
                self._advance_all()
                if posting.is_over and self._resting:
                    self._hand_over()
            if posting.is_over or _now() >= until:
                return
            self._has_slept = False
            while (
                _now() < until
                and not any(lane.has_news for lane in self._busy)
                and not posting.is_over
            ):
                os.sched_yield()
            self._yielding.ended(until, _now())

    def _move_until(self, posting: Posting, until: float) -> None:
        """Sleep, and look into the lanes when a peer rings."""
        while not posting.is_over and (now := _now()) < until:
            with self._lock, self._moving:
                sends = any(one.sends for one in (posting, *self._in_line))
                sleeps = self._may_sleep(WAITER | ANSWERS * sends) and not posting.is_over
            if sleeps:
                self._has_slept = True
                left_s = min(until - now, limits.LONGEST_WAIT_S)
                if self._bell_poll.poll(left_s * 1000):
                    os.eventfd_read(self._waiter_bell)
            with self._lock, self._moving:
                self._advance_all()

    def _hand_over(self) -> None:
        """Have the group's thread see to what is posted, if it rests, until a thread waits for it.
        Where peers answer while this thread still looks, they would ring in vain for each message:
        then the thread is to look by itself, later. Else the peers ring it."""
        if self._waiter is not None or not self._has_work():
            return
        if not self._has_slept:
            self._rouse()
        elif not self._may_sleep(THREAD):
            self._advance_all()

    def _may_sleep(self, whom: int) -> bool:
        return may_sleep(self._busy, whom | MESSAGES * bool(self._matching.receives))

    def _want_nobody(self) -> None:
        for lane in self._busy:
            if lane.wanted:
                lane.want(NOBODY)

    def _use(self, lane: Lane) -> None:
        if lane not in self._busy and not lane.is_over:
            self._busy.append(lane)
            lane.want(NOBODY)
            self._rouse_waiter()

    def _has_work(self) -> bool:
        """Whether something is to be moved, perhaps an answer to what is over on this rank."""
        return self._matching.has_pending or any(lane.wants_to_write for lane in self._busy)

    def _advance_all(self) -> None:
        for lane in tuple(self._busy):
            if lane.has_news:
                self._advance(lane)

    def _advance(self, lane: Lane) -> None:
        """Take what has come, and put what is queued."""
        try:
            if self._error is None:
                lane.pull()  # first: what a peer said before it went is worth reading
            if lane.wants_room:
                lane.push()
            lane.ring()
        except Closed as error:
            self._left(lane, str(error))
        except BadFrame as error:
            self._garbled(lane.peer, error)
            self._rouse()

    def _left(self, lane: Lane, reason: str) -> None:
        """All is read that the peer has ever put."""
        lane.is_over = True
        if lane in self._busy:
            self._busy.remove(lane)
        self._matching.nothing_to(lane.peer, reason)
        self._matching.nothing_from(lane.peer, reason)
        lane.give_up()

    def _rouse_waiter(self) -> None:
        """Have the thread of the program that moves messages look around, if another one does."""
        if self._waiter is not None and self._wake >= 0:
            os.eventfd_write(self._waiter_bell, 1)

    def _rouse(self) -> None:
        """Have the group's thread look around."""
        self._resting = False
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

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
            with self._lock, self._moving:
                self._break(error)
                self._end_all(self._error or self._destroyed())
            raise
        finally:
            self._tell_finished()

    def _tell_finished(self) -> None:
        while self.finished:
            self.finished.popleft().tell()

    def _serve(self) -> None:
        while True:
            self._take_posted()
            with self._lock, self._moving:
                self._serve_lanes()
                error = self._error
                if error is not None:
                    self._end_all(error)
                self._register()
            if self._closing and not self._posted and self._is_through():
                with self._lock, self._moving:
                    self._end_all(self._error or self._destroyed())
                return
            with self._lock, self._moving:
                timeout_ms = self._timeout_ms()
            events = self._poll.poll(timeout_ms)
            with self._lock, self._moving:
                self._resting = False
                for descriptor, _event in events:
                    self._happened(descriptor)
                now = _now()
                self._settle_doubts(now)
                self._advance_all()  # answers that nobody was woken for
                self._matching.expire(now)
            self._tell_finished()

    def _serve_lanes(self) -> None:
        """Move what can be moved through lanes. Nothing is to wake this thread for more while one
        of the program waits, or may be about to: what was posted just now is left to that one."""
        for lane in self._lanes.values():
            if lane.has_news or lane.wants_to_write:
                self._use(lane)
                self._advance(lane)
        may_wait = self._posts != self._posts_seen
        self._posts_seen = self._posts
        self._pause_s = limits.MESSAGE_PAUSE_S if may_wait else float("inf")
        left_over = self._waiter is None and not may_wait and self._has_work()
        if left_over or self._closing:
            self._pause_s = float("inf") if self._may_sleep(THREAD) else 0.0
        self._resting = self._pause_s > limits.MESSAGE_PAUSE_S

    def _take_posted(self) -> None:
        while self._dialled:
            peer, connection = self._dialled.popleft()
            with self._lock, self._moving:
                receiver = Receiver(connection, self._checked, peer, self._matching)
                self._receivers[peer] = receiver
                failed = self._error or self._matching.cause
                if self._told and failed is not None:  # it came after all others were told
                    _tell_end(receiver, failed)
        while self._posted and self._error is None:
            posting, refused = self._posted.popleft(), None
            peer = posting.source
            if peer not in self._senders and self._matching.listens(peer):
                try:
                    # Half a minute for a peer that has no connection to this rank, yet, to take
                    # one. This waits: others move messages meanwhile.
                    self._call(peer, min(posting.deadline, _now() + 30.0))
                except GroupFailed as error:
                    refused = error
            with self._lock, self._moving:
                self._begin_send(posting, refused)

    def _begin_send(self, posting: Posting, refused: GroupFailed | None = None) -> None:
        matching, peer = self._matching, posting.source
        try:
            matching.check_listens(peer)
            if refused is not None:
                raise refused
            life = self._lives.get(peer)
            alive = life is None or not life.poll(0)  # else the group's thread tells that it ended
            matching.send(posting, self._senders[peer], alive)
        except Closed as error:
            if peer in self._senders:
                try:
                    self._senders[peer].pull()  # it may have said why
                except (Closed, BadFrame):
                    pass
            matching.fail(posting, matching.loss(peer, str(error), posting))
        except GroupFailed as error:
            told = matching.words.get(peer)
            what = type(error)(f"{posting.what}: {error}", error.culprit, error.link)
            matching.fail(posting, told or what)

    def _call(self, peer: int, deadline: float) -> None:
        connection = self._dial(peer, deadline)
        with self._lock, self._moving:
            self._senders[peer] = Sender(connection, self._checked, peer, self._matching)

    def _is_through(self) -> bool:
        """On closing: whether all was said."""
        if not self._told and self._matching.cause is not None and self._is_idle():
            self._tell_everybody(self._matching.cause)
        with self._lock, self._moving:
            for lane in self._lanes.values():
                if not (lane.is_over or lane.has_left or lane.wants_to_write):
                    lane.leave()
                    self._advance(lane)
            self._register()
        return (self._is_idle() and self._is_received()) or _now() >= self._close_by

    def _is_received(self) -> bool:
        """Whether peers have read what is buffered for them. A connection that is closed while
        answers lie unread in it is reset, and what the system has yet to send over it is lost: so
        this rank says that it sends no more, and the peer closes it."""
        left = False
        for peer in filter(self._matching.listens, self._senders):
            end = self._senders[peer]
            if peer not in self._lanes and end.room < BUFFERED_BYTES:
                left = True
                if peer not in self._half_closed:
                    self._half_closed.add(peer)
                    with contextlib.suppress(OSError):
                        end.connection.shutdown(socket.SHUT_WR)
        return self._error is not None or not left

    def _is_idle(self) -> bool:
        return not any(end.wants_to_write for end in (*self._ends(), *self._lanes.values()))

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
        with self._lock, self._moving:
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
        for lane in self._lanes.values():
            if not lane.is_over:
                lane.sender.tell(error)
                self._advance(lane)

    def _ends(self) -> list[Sender | Receiver]:
        """The ends of connections."""
        sides = (self._senders, self._receivers)
        return [end for side in sides for peer, end in side.items() if peer not in self._lanes]

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
                if peer in self._lanes:
                    continue
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
            self._garbled(peer, error)

    def _garbled(self, peer: int, error: BadFrame) -> None:
        me, rank = self.ranks[self.rank], self.ranks[peer]
        text = f"on the connection from rank {rank} to rank {me}: {error}"
        self._error = self._error or CorruptFrame(text, rank, (rank, me))

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._peers[descriptor]

    def _life_ended(self, descriptor: int, peer: int) -> None:
        self._forget(descriptor)
        lane = self._lanes.get(peer)
        if lane is not None and not lane.is_over:
            self._advance(lane)
        payload = last_words(descriptor)
        if payload is not None:
            try:
                self._matching.told(peer, payload)
            except BadFrame:
                pass
        if lane is None:
            self._doubt(peer, "closed the connection", ended=True)
        elif not lane.is_over:
            self._left(lane, "closed the connection")

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
            now + self._pause_s,
            self._close_by,
            *(posting.deadline for posting in self._matching.pending),
            *(
                now + limits.MESSAGE_PAUSE_S if doubt.ended else doubt.until
                for doubt in self._doubts.values()
            ),
        )
        self._rest_until = until
        return max(0, int((until - now) * 1000) + 1)


def _tell_end(end: Sender | Receiver, error: GroupFailed) -> None:
    end.tell(error)
    try:
        end.push()
    except Closed:
        end.give_up()
