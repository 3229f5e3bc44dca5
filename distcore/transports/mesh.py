"""A group's network: a link to every peer, and `exchange`, which drives the links of one step.

All waiting is here, in one `poll` over all links, so that whatever ends a wait is seen at once: the
message, the call's deadline, an abort, a lost peer, a failure that a peer passes on. The first
error of a group is passed on to every peer, and ends the group.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import NoReturn

from ..base.deadline import extended, timed_out
from ..errors import Aborted, CorruptFrame, DeadlineExceeded, GroupFailed, PeerLost
from ..limits import CROWDED_STEP_SPIN_S, LEFT_S, LONGEST_WAIT_S, SHARE_S, STEP_SPIN_S
from . import shared_memory
from .base import Connect, Receive, Send, Transport
from .frames import (
    BYE,
    BadFrame,
    Closed,
    FramedCall,
    GaveUp,
    control,
    digest32,
    failure,
    fingerprint,
    wire_text,
)
from .lane import Lane
from .link import PeerLink, hear_last_words, ready
from .survey import Survey, answers_within_s
from .yielding import Yielding

FOREVER = float("inf")
_IN, _OUT = select.POLLIN, select.POLLOUT
_now = time.monotonic


class Mesh(Transport):
    """The links of one group. One thread at a time uses it; `abort` may come from any."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        connect: Connect,
        *,
        deadline: float = FOREVER,
        checked: bool = False,
        share_memory: bool = True,
        bells: Sequence[int] = (),
    ) -> None:
        """Connect to all peers. `ranks`: the group's global ranks; `rank`: this one's place in
        them. `checked`: send a checksum with every frame. `bells`: for `lanes`."""
        self.name = name
        self.ranks = tuple(ranks)
        self.rank = rank
        self.size = len(self.ranks)
        self.failed: GroupFailed | None = None
        self._number = digest32(name)
        self._texts: dict[str, tuple[bytes, int]] = {}
        self._seq = 0
        self._step = 0
        self._call: FramedCall | None = None
        self._deadline = deadline
        self._abort: str | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake, _IN)
        self._bells = bells
        self.lanes: dict[int, Lane] = {}
        """By peer of this host: the memory for the messages of a `Mailbox`, for as long as this
        mesh is not closed."""
        self._links: dict[int, PeerLink] = {}
        self._by_descriptor: dict[int, PeerLink] = {}
        self._has_cores = self.size <= (os.cpu_count() or 1)
        self._yielding = Yielding(STEP_SPIN_S if self._has_cores else CROWDED_STEP_SPIN_S)
        self._lost_since: dict[int, float] = {}
        try:
            # The lower rank dials: those that are dialled here first, for they never wait for us.
            near: dict[int, socket.socket] = {}
            for peer in sorted(set(range(self.size)) - {rank}, reverse=True):
                connection = connect(peer, deadline)
                if share_memory and connection.family == socket.AF_UNIX:
                    near[peer] = connection
                self._add(peer, connection, checked, peer in near)
            for connection in near.values():
                connection.settimeout(SHARE_S)
            wanted = self.size > 2 and not checked and len(near) == self.size - 1
            self.board = shared_memory.share_board(near, rank, wanted)
            for connection in near.values():
                connection.setblocking(False)
        except shared_memory.Gone as gone:
            self.close()
            lost = self.ranks[gone.peer]
            text = f"rank {lost} was lost while group {name!r} was made: {gone}"
            raise PeerLost(text, lost, (lost, self.ranks[rank])) from None
        except BaseException:
            self.close()
            raise

    def _add(self, peer: int, connection: socket.socket, checked: bool, share_memory: bool) -> None:
        memory = None
        if share_memory:
            connection.settimeout(SHARE_S)
            try:
                shared = shared_memory.share(peer, connection, self._bells, not checked)
            except BaseException:
                connection.close()
                raise
            if shared is not None:
                outbox, inbox, lane = shared
                memory = outbox, inbox
                if lane is not None:
                    self.lanes[peer] = lane
        link = PeerLink(connection, peer, self.ranks[peer], self.ranks[self.rank], memory, checked)
        self._links[peer] = link
        self._by_descriptor[link.descriptor] = link
        self._poll.register(link.descriptor, _IN)

    def __repr__(self) -> str:
        state = "failed" if self.failed else "idle" if self._call is None else f"in {self._call}"
        return f"<Mesh {self.name!r} rank {self.rank} of {self.size}: {state}>"

    # -- calls ---------------------------------------------------------------------------------

    def begin(self, text: str, deadline: float = FOREVER) -> int:
        """A call begins; its sequence number. `text` must be the same on every rank."""
        if self.failed is not None:
            text = (
                f"group {self.name!r} cannot be used any more, destroy it and make a new one; "
                f"it failed with: {self.failed}"
            )
            raise GroupFailed(text, self.failed.culprit, self.failed.link) from self.failed
        known = self._texts.get(text)
        if known is None:
            raw = wire_text(text)
            if len(self._texts) > 1_000:
                self._texts.clear()
            known = self._texts[text] = (raw, fingerprint(raw))
        seq = self._seq
        self._seq = seq + 1
        self._step = 0
        self._call = FramedCall(self._number, seq, known[0], known[1])
        self._deadline = deadline
        return seq

    def end(self) -> None:
        """The call is over."""
        self._call = None

    def exchange(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        call = self._call
        assert call is not None, "exchange outside of a call"
        step = self._step
        self._step = step + 1
        links = self._links
        sending: set[PeerLink] = set()
        receiving: set[PeerLink] = set()
        link = None
        try:
            for receive in receives:
                link = links[receive.peer]
                link.expect(receive, call, step)
                receiving.add(link)
            alone = not receives and self._has_cores
            for send in sends:
                link = links[send.peer]
                if not link.send(send.data, call, step, send.at_rest and not alone):
                    sending.add(link)
            now = _now()
            until = self._yielding.until(now)
            for link in tuple(receiving):
                if (until > now or link.incoming.has_more) and link.pull():
                    receiving.discard(link)
            if receiving and until > now:
                self._look(receiving, until)
            if sending or receiving:
                link = None
                self._wait(sending, receiving)
        except (Closed, BadFrame) as error:
            self._raise_for(link, error)
        except GaveUp:
            self._give_up(receiving | sending, asked=True)

    def _look(self, receiving: set[PeerLink], until: float) -> None:
        """Look for what is awaited until then, before sleeping."""
        while receiving and _now() < until:
            os.sched_yield()
            for link in tuple(receiving):
                try:
                    if link.pull():
                        receiving.discard(link)
                except (Closed, BadFrame) as error:
                    self._raise_for(link, error)
        self._yielding.ended(until, _now())

    def _wait(self, sending: set[PeerLink], receiving: set[PeerLink]) -> None:
        poll = self._poll
        unread: set[PeerLink] = set()  # with data in line that this step does not ask for
        involved = tuple(sending)
        try:
            for link in involved:  # a slot given back may lie in the buffer already
                self._advance(link, sending, receiving, unread)
            while sending or receiving:
                others = []
                for descriptor, _events in poll.poll(self._timeout_ms()):
                    if descriptor == self._wake:
                        raise Aborted(f"{self._abort}; it was in {self._call}")
                    link = self._by_descriptor[descriptor]
                    if link in receiving or link in sending:
                        self._advance(link, sending, receiving, unread)
                    else:
                        others.append(link)
                if not (sending or receiving):
                    break  # a failure that the others tell of is not one of this step
                for link in others:
                    self._advance(link, sending, receiving, unread)
                self._check_clock(sending, receiving)
        finally:
            for link in {*involved, *unread}:
                if link.descriptor in self._by_descriptor:
                    poll.register(link.descriptor, _IN)
                    link.watched = _IN

    def _advance(
        self,
        link: PeerLink,
        sending: set[PeerLink],
        receiving: set[PeerLink],
        unread: set[PeerLink],
    ) -> None:
        """Something may have happened on the link."""
        if link in unread and link not in sending:
            self._poll.unregister(link.descriptor)  # it hung up: that is for a later step
            return
        try:
            in_line = link.pull()
            if in_line and link in receiving:
                receiving.discard(link)
                # Behind the message there may be slots given back.
                in_line = link in sending and link.pull()
            if in_line:
                unread.add(link)
            if link in sending and link.push():
                sending.discard(link)
        except (Closed, BadFrame) as error:
            if link.outgoing.is_through:
                sending.discard(link)  # it was read in place, and then the peer left
            if isinstance(error, Closed) and link not in receiving and link not in sending:
                # A peer has gone from which nothing is needed just now.
                self._poll.unregister(link.descriptor)
                del self._by_descriptor[link.descriptor]
                if not error.orderly:
                    self._lost_since[link.peer] = _now()
                return
            self._raise_for(link, error)
        reads = 0 if link in unread else _IN
        writes = _OUT if link in sending and link.outgoing.wants_to_write else 0
        if link.watched != reads | writes:
            link.watched = reads | writes
            self._poll.modify(link.descriptor, reads | writes)

    def _timeout_ms(self) -> int:
        until = self._deadline
        for since in self._lost_since.values():
            until = min(until, since + LEFT_S)
        if until == FOREVER:
            return int(LONGEST_WAIT_S * 1000)
        return int(max(0.0, min(LONGEST_WAIT_S, until - _now())) * 1000) + 1

    def _check_clock(self, sending: set[PeerLink], receiving: set[PeerLink]) -> None:
        if not (sending or receiving):
            return
        now = _now()
        for peer, since in self._lost_since.items():
            if now >= since + LEFT_S:
                link = self._links[peer]
                self._raise_for(link, link.ended or Closed("closed the connection", orderly=False))
        if now >= self._deadline:
            self._deadline = extended(self._deadline)
            if now >= self._deadline:
                self._give_up(receiving | sending, asked=False)

    # -- errors --------------------------------------------------------------------------------

    def _give_up(self, awaited: set[PeerLink], asked: bool) -> NoReturn:
        """The time is up, here or on another rank that waits for this one."""
        in_line = sorted(awaited, key=lambda link: link.peer)
        progress = "; ".join(link.incoming.progress for link in in_line if link.incoming.expects)
        awaiting, limit_s = [link.peer for link in in_line], answers_within_s(self._deadline)
        survey = Survey(self._links, self.rank, awaiting, asked, limit_s)
        silent = survey.found.silent
        for peer in silent:
            if peer in survey.lost:
                self._raise_for(self._links[peer], survey.lost[peer])
        late = [link.global_rank for link in in_line]
        who = f"rank {late[0]}" if len(late) == 1 else f"ranks {late}"
        blamed = [self.ranks[peer] for peer in silent] or late
        raise DeadlineExceeded(
            f"the timeout of {self._call} ran out in step {self._step - 1}, waiting for {who}: "
            f"{progress or 'nobody took the data'}; {survey.found.explained(self.ranks)}"
            f"{timed_out(self._deadline)}",
            blamed[0] if len(blamed) == 1 else None,
            survey.unheard,
        )

    def _raise_for(self, link: PeerLink | None, error: Closed | BadFrame) -> NoReturn:
        assert link is not None
        where = f"in {self._call}, step {self._step - 1}" if self._call else "between calls"
        rank = link.global_rank
        if isinstance(error, BadFrame):
            text = f"on the connection from rank {rank}, {where}: {error}"
            raise CorruptFrame(text, rank, link.ends)
        progress = link.incoming.progress
        hear_last_words(link, self._links.values())
        text = f"rank {rank} was lost {where}: it {error}; {progress}"
        raise PeerLost(text, rank, link.ends) from None

    def fail(self, error: BaseException) -> None:
        """The group has failed on this rank: pass the cause on to all peers. Once."""
        if self.failed is not None:
            return
        if isinstance(error, GroupFailed):
            self.failed = error
        else:
            kind = type(error).__name__
            self.failed = GroupFailed(
                f"rank {self.ranks[self.rank]} left {self._call or 'a call'}: {kind}: {error}",
                self.ranks[self.rank],
            )
        self._tell(failure(self.failed))

    def _tell(self, frame: bytes) -> None:
        """Send a frame behind what is on its way already, as far as peers take it in a second."""
        until = _now() + 1.0
        left = []
        for link in self._links.values():
            # One who only stopped sending may still listen.
            if link.ended is None or not link.ended.orderly:
                link.outgoing.abandon()
                try:
                    link.outgoing.control(frame)
                except (Closed, BadFrame):
                    continue
                left.append(link)
        while left := [link for link in left if link.outgoing.wants_to_write]:
            seconds = until - _now()
            if seconds <= 0:
                return
            writable = ready((link.descriptor for link in left), _OUT, seconds)
            for link in left:
                if link.descriptor in writable:
                    try:
                        link.push()
                    except (Closed, BadFrame):
                        link.outgoing.drop_unsent()

    def abort(self, reason: str) -> None:
        """End what the group is doing, from another thread: it raises Aborted."""
        self._abort = reason
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Leave the group. Peers that need nothing from this rank any more go on."""
        self.close_gracefully()
        self.abandon()

    def close_gracefully(self) -> None:
        """Tell the peers that this rank leaves, unless another thread is in a call of the group:
        then nobody needs to be told but by the connection's end."""
        if self.failed is None and self._call is None:
            self._tell(control(BYE))

    def abandon(self) -> None:
        """Close the connections."""
        for lane in self.lanes.values():
            lane.close()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._by_descriptor.clear()
        if self.board is not None:
            self.board.close()
            self.board = None
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    @property
    def descriptors(self) -> dict[int, int]:
        """Returns by peer the descriptor of a connection that ends when the peer does."""
        return {peer: link.descriptor for peer, link in self._links.items()}
