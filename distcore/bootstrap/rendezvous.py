"""The rendezvous: a rank joins its group through torch's store, then connects to its peers."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..base.linux import Host, this_host
from ..errors import Aborted, DeadlineExceeded, GroupFailed, PeerLost, RendezvousError
from . import handshake, listener, sockets
from .addresses import candidate_address, listening_address
from .dial import DialTimeout, Endpoint, TurnedAway, dial
from .handshake import KEY_FILE_VARIABLE, fingerprint, job_key
from .join import TRANSPORTS, Joining, Round, own_member

LANES = 16
"""Connections that a pair of ranks may have."""
FREE_LANE = LANES - 1
"""The one on which either rank calls the other when it likes, once in each direction."""


class Rendezvous:
    """The ranks of one group, connected on demand.

    The constructor blocks until all ranks have come; see `join` for how, and for what makes it
    safe on a store that holds old data. A group of one opens nothing and asks nobody. Otherwise:
    RendezvousError names the ranks that did not come within `timeout_s` seconds, or says what else
    stands in the way; ValueError for a transport that there is not.

    `ranks` are the global ranks by group rank; error messages and `culprit` use them; `rank` is
    this one's group rank. `transport`: "auto" and "shm" connect ranks of one host over UNIX
    sockets, where both want it; "tcp" uses TCP always; "shm" refuses a group on several hosts.
    `host` says where this process runs, if not where it seems to.

    Use it from any thread. A forked child must make its own.
    """

    def __init__(
        self,
        store: Any,
        name: str,
        ranks: Sequence[int],
        rank: int,
        timeout_s: float,
        transport: str = "auto",
        algorithms: str = "",
        host: Host | None = None,
    ) -> None:
        self._ranks = tuple(ranks)
        if transport not in TRANSPORTS:
            raise ValueError(
                f"transport {transport!a} is none of {', '.join(map(ascii, TRANSPORTS))}"
            )
        self.name = name
        self.rank = rank
        self.size = len(self._ranks)
        self._transport = transport
        self._algorithms = algorithms
        self._process = os.getpid()
        self._timeout_ms = sockets.user_timeout_ms()
        self._changed = threading.Condition()
        self._arrived: dict[tuple[int, int], socket.socket] = {}
        self._seen: set[tuple[int, int]] = set()
        self._called: Callable[[int, socket.socket], bool] | None = None
        self._abort_reason: str | None = None
        self._listener: listener.RankListener | None = None
        self._registration: listener.Registration | None = None
        self._cannot_listen: Exception | None = None
        self._round: Round | None = None
        self._endpoints: tuple[Endpoint, ...] = ()
        if self.size > 1:
            self._join(store, timeout_s, this_host() if host is None else host)

    @property
    def digest(self) -> bytes:
        """32 bytes that all ranks of this group share, and no other group that was ever made,
        be it of the same name; empty for a group of one."""
        return b"" if self._round is None else self._round.group

    def connect(self, peer: int, lane: int, deadline: float) -> socket.socket:
        """A connected, authenticated, non-blocking stream socket to group rank `peer`.

        Both ranks call it, once per lane; the lower rank dials and the higher one waits to be
        called. The caller owns the socket. Raises DeadlineExceeded at `deadline`
        (time.monotonic seconds), Aborted after `abort` or `close`, PeerLost when the peer has died
        or has left the group; a wait is also ended by an exception of a Python signal handler.
        """
        self._check_process()
        if peer > self.rank:
            return self._dial(peer, lane, deadline)
        return self._await(peer, lane, deadline)

    def dial(self, peer: int, deadline: float) -> socket.socket:
        """A connection to `peer` on the free lane, which only this rank asks for: the peer gets it
        by `on_call`. Raises what `connect` raises."""
        self._check_process()
        return self._dial(peer, FREE_LANE, deadline)

    def is_calling(self, peer: int) -> bool:
        """Whether a call of `peer` on the free lane is under way, that `on_call` may still bring.
        Once it is no for a peer that has ended, no call of it comes any more."""
        registration, opened = self._registration, self._listener
        if registration is None or opened is None:
            return False
        return opened.is_called_by(registration, peer, FREE_LANE)

    def on_call(self, deliver: Callable[[int, socket.socket], bool]) -> None:
        """From now on `deliver(sender, connection)` gets what peers `dial`, and what they have
        dialled before. It runs on the listener's thread and must not wait; False: not wanted."""
        with self._changed:
            self._called = deliver
            waiting = [key for key in self._arrived if key[1] == FREE_LANE]
            for sender, lane in waiting:
                connection = self._arrived.pop((sender, lane))
                if not deliver(sender, connection):
                    connection.close()

    def abort(self, reason: str) -> None:
        """Ends every `connect`, now and later, with Aborted. The first reason counts."""
        with self._changed:
            if self._abort_reason is None:
                self._abort_reason = reason
            self._changed.notify_all()

    def close(self) -> None:
        """Leaves the group: calls are not taken any more, what nobody fetched is closed.

        Sockets that `connect` returned are the caller's. Waiting `connect`s raise Aborted.
        """
        if os.getpid() != self._process:
            # The parent's locks may be held here, by threads that do not exist.
            self._close_arrived()
            return
        self.abort("the group was closed")
        self._withdraw()
        with self._changed:
            self._close_arrived()
            opened, self._listener = self._listener, None
        if opened is not None:
            listener.release(opened)

    def _join(self, store: Any, timeout_s: float, host: Host) -> None:
        key = job_key()
        me = own_member(
            host, candidate_address(store), self._transport, self._algorithms, fingerprint(key)
        )
        self._listener = listener.acquire()
        try:
            joining = Joining(
                store, self.name, self.rank, self._ranks, timeout_s, me, self._listen, key
            )
            self._round, self._endpoints = joining.run()
        except BaseException as error:
            self.close()
            if isinstance(error, RendezvousError) and self._cannot_listen is not None:
                raise error from self._cannot_listen
            raise

    def _listen(self, agreed: Round) -> Endpoint | None:
        """Takes calls for what the ranks agreed on."""
        assert self._listener is not None
        self._withdraw()
        hosts = [member.host for member in agreed.members]
        for rank, member in enumerate(agreed.members):
            others = [other for other, host in enumerate(hosts) if host != member.host]
            if member.transport == "shm" and others:
                raise RendezvousError(
                    f"group {self.name!a}: rank {self._ranks[rank]} asks for transport 'shm', "
                    f"but rank {self._ranks[others[0]]} is on another host; use 'auto'"
                )
            if member.key != agreed.members[self.rank].key:
                has = {True: "a key", False: "no key"}
                raise RendezvousError(
                    f"group {self.name!a}: all ranks must have the same key of the job, but rank "
                    f"{self._ranks[rank]} has {'another key' if member.key else 'none'}, and rank "
                    f"{self._ranks[self.rank]} {has[bool(agreed.members[self.rank].key)]}: give "
                    f"all of them one {KEY_FILE_VARIABLE}"
                )
            if member.algorithms != agreed.members[0].algorithms:
                raise RendezvousError(
                    f"group {self.name!a}: all ranks must wish for the same algorithms, but rank "
                    f"{self._ranks[rank]} has {member.algorithms!a}, rank {self._ranks[0]} "
                    f"{agreed.members[0].algorithms!a}"
                )
        try:
            candidates = [member.candidate for member in agreed.members]
            address, port = self._listener.listen(listening_address(self.rank, hosts, candidates))
        except (OSError, RendezvousError) as error:
            self._cannot_listen = error
            return None
        self._registration = listener.Registration(
            group=agreed.group,
            rank=self.rank,
            size=self.size,
            secret=agreed.secret,
            lanes=LANES,
            timeout_ms=self._timeout_ms,
            deliver=self._deliver,
            free_lanes=frozenset({FREE_LANE}),
        )
        self._listener.register(self._registration)
        return Endpoint(address, port, self._listener.unix_token)

    def _withdraw(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None and self._listener is not None:
            self._listener.unregister(registration)

    def _deliver(self, sender: int, lane: int, connection: socket.socket) -> bool:
        """On the listener's thread: a peer has called. The first call on a lane counts."""
        with self._changed:
            if self._abort_reason is not None or (sender, lane) in self._seen:
                return False
            self._seen.add((sender, lane))
            if lane == FREE_LANE and self._called is not None:
                return self._called(sender, connection)
            self._arrived[sender, lane] = connection
            self._changed.notify_all()
            return True

    def _close_arrived(self) -> None:
        while self._arrived:
            self._arrived.popitem()[1].close()

    def _await(self, peer: int, lane: int, deadline: float) -> socket.socket:
        """Until the lower rank has called. One that is silent is probed after 0.3 s, then half as
        often each time, at last every second."""
        interval_s = 0.3
        lost: GroupFailed | None = None
        while True:
            until = min(deadline, time.monotonic() + interval_s)
            with self._changed:
                while True:
                    self.check_aborted()
                    connection = self._arrived.pop((peer, lane), None)
                    if connection is not None:
                        return connection
                    left = until - time.monotonic()
                    if lost is not None or left <= 0:
                        break
                    self._changed.wait(left)
            if lost is not None:
                raise lost
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(
                    f"group {self.name!a}: rank {self._ranks[peer]} did not connect to rank "
                    f"{self._ranks[self.rank]} before the call's deadline"
                )
            lost = self._probe(peer, deadline)
            interval_s = min(2 * interval_s, 1.0)

    def _probe(self, peer: int, deadline: float) -> GroupFailed | None:
        """Asks whether a rank is still in the group; returns the error when it is not.

        Only a certain no counts, within half a second: a rank that is stopped or busy does not
        answer either.
        """
        soon = min(deadline, time.monotonic() + 0.5)
        try:
            self._call(peer, handshake.PROBE_LANE, soon).close()
        except (ConnectionRefusedError, TurnedAway, handshake.HandshakeRefused) as error:
            return self._failure(peer, error)
        except (OSError, DialTimeout):
            pass
        return None

    def _dial(self, peer: int, lane: int, deadline: float) -> socket.socket:
        try:
            return self._call(peer, lane, deadline)
        except (OSError, DialTimeout, handshake.HandshakeRefused) as error:
            raise self._failure(peer, error) from error

    def _call(self, peer: int, lane: int, deadline: float) -> socket.socket:
        assert self._round is not None
        own, theirs = self._round.members[self.rank], self._round.members[peer]
        connection = dial(
            self._endpoints[peer],
            own.host == theirs.host and "tcp" not in (own.transport, theirs.transport),
            handshake.Hello(self._round.group, lane, self.rank, peer),
            self._round.secret,
            self._timeout_ms,
            deadline,
            self.check_aborted,
        )
        opened = self._listener
        if opened is not None:
            opened.watch(connection, self._timeout_ms)
        return connection

    def _failure(self, peer: int, error: Exception) -> GroupFailed:
        """Returns the error of the group that a failed call to a peer means."""
        assert self._round is not None
        endpoint, culprit = self._endpoints[peer], self._ranks[peer]
        what = f"group {self.name!a}: rank {culprit} ({self._round.members[peer]})"
        match error:
            case DialTimeout():
                return DeadlineExceeded(
                    f"{what} did not answer at {endpoint} before the call's deadline"
                )
            case ConnectionRefusedError():
                return PeerLost(f"{what} is gone: nobody listens at {endpoint} any more", culprit)
            case TurnedAway():
                return PeerLost(f"{what} has left the group: {endpoint} turns us away", culprit)
            case handshake.HandshakeRefused():
                return PeerLost(f"{what} is gone: somebody else answers at {endpoint}", culprit)
            case OSError(errno=errno.EMFILE | errno.ENFILE | errno.ENOBUFS | errno.ENOMEM):
                return GroupFailed(
                    f"group {self.name!a}: rank {self._ranks[self.rank]} cannot open a connection "
                    f"to rank {culprit}: {error}",
                    self._ranks[self.rank],
                )
            case _:
                return PeerLost(f"{what} cannot be reached at {endpoint}: {error}", culprit)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RendezvousError(
                f"group {self.name!a} belongs to process {self._process}; a forked child "
                f"cannot use it and must make a group of its own"
            )

    def check_aborted(self) -> None:
        """Raises Aborted after `abort` or `close`."""
        if self._abort_reason is not None:
            raise Aborted(
                f"group {self.name!a}, rank {self._ranks[self.rank]}: {self._abort_reason}"
            )
