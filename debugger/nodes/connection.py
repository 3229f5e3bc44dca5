"""A node's end: connects to the head, and knows when the head has fallen silent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..nodes import limits
from .keys import KeyPair, Offer
from .link import Link, resend_steadily
from .messages import MOST_BYTES, Intake, Message, MessageError, message_of, size_of
from .presence import LINES, Event, LineState, Peer, Standing, Way, after

CLOSED_TIMES = 3
"""So often a listener may close while keys are proved; it is asked ten times a second."""


@dataclass(slots=True)
class _Dialled:
    """A connection to the head, and what is told of it."""

    dealer: Any
    monitor: Any
    until_s: float
    line: LineState = LineState.DIALLED

    def on(self, told: Mapping[str, Any]) -> None:
        """Takes what ZeroMQ tells of it."""
        event = told["event"]
        if event == zmq.EVENT_CONNECTED:
            resend_steadily(told["value"])
        self.line = after(LINES, self.line, _EVENTS.get(event, Event.CLOSE))


_EVENTS = {zmq.EVENT_CONNECTED: Event.CONNECT, zmq.EVENT_HANDSHAKE_SUCCEEDED: Event.PROVE}


class Connection(Link):
    """The connection to the head at `offer`. `hello` is what is said of this node.

    It begins with `connect`; until then it has a key and nothing else. `pair`: where all nodes have
    keys of the job (see `keys`), and none is told the head; such a head may come up to
    `answer_s` later than its nodes.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        pair: KeyPair | None = None,
        answer_s: float = limits.HEAD_ANSWERS_S,
    ) -> None:
        super().__init__("distdebug-node", say, pair)
        self._answer_s = answer_s
        self._all_have_one_key = pair is not None
        self._closed = 0
        self.not_the_head = ""
        """The sentence about a listener there that is not the head."""
        self.offer: Offer | None = None
        self._hello: Mapping[str, Any] = {}
        self._intake = Intake()
        self._handed = self._handled = 0
        """Messages given to the thread, and those that it has dealt with."""
        self._sent = self._taken = 0
        self._began_s = 0.0
        self._head = Peer()
        self.welcome: Mapping[str, Any] | None = None
        self.refusal = ""
        self._used: _Dialled | None = None
        self._second: _Dialled | None = None
        self._left: _Dialled | None = None
        """The connection that was left, until the head has answered on the one that followed."""

    def connect(self, offer: Offer, hello: Mapping[str, Any]) -> None:
        """Meet the head there."""
        self.offer, self._hello = offer, hello
        self._began_s = time.monotonic()
        self.start()

    def send(self, message: Message) -> None:
        """Sends to the head."""
        self._handed += 1
        self.later(lambda: self._send_handed(message))

    def received(self) -> list[Message]:
        """Returns what has come since the last call, in order."""
        return [message for _, message in self._inbox.taken()]

    @property
    def ahead(self) -> int:
        """The messages on the way that the head has not taken in, as far as it has said."""
        return self._handed - self._handled + self._sent - self._taken

    @property
    def silent_s(self) -> float:
        """The seconds for which the head has said nothing, while this node listened; before it has
        ever spoken, 0."""
        return self._head.silent_s(self._listening.total_s)

    @property
    def absent_s(self) -> float:
        """The seconds for which this process was not run (suspended, or its machine was), if
        nothing was heard of the head since then; else 0."""
        until_s = self._listening.absent_at_s + limits.QUEUE_EVERY_S
        return self._listening.absent_s if self._head.last_s <= until_s else 0.0

    @property
    def lost(self) -> str:
        """The reason why there is no head (any more), in words; "" while there is one, or may
        be."""
        if self.refusal:
            return self.refusal
        if self.failure:
            return f"the link to the head is off: {self.failure}"
        if self._head.standing not in (Standing.MISSED, Standing.LOST):
            return ""
        where = f"the head at {self.offer.endpoint[6:]}" if self.offer else "the head"
        if self._head.last_s < 0:
            waited = f" within {self._answer_s:.0f} s" if self._all_have_one_key else ""
            return f"{where} does not answer{waited}"
        if absent_s := self.absent_s:
            return f"this node was not run for {absent_s:.1f} s, and {where} has given it up"
        return f"{where} ({self.host}) has said nothing for {self.silent_s:.1f} s"

    @property
    def host(self) -> str:
        """The head's."""
        return self.offer.host if self.offer else ""

    @property
    def connected(self) -> bool:
        """Whether both ends have proved their keys, and the connection holds."""
        return self._used is not None and self._used.line is LineState.PROVED

    # -- in the thread -------------------------------------------------------------------------

    def _open(self) -> None:
        assert self.offer is not None
        self._used = self._dial(self.offer)

    def _dial(self, offer: Offer, urgent: bool = False) -> _Dialled:
        """Dials whoever listens there. `urgent`: the network may be back at any moment."""
        dealer = self.socket(zmq.DEALER, offer.address)
        dealer.curve_serverkey = offer.key.encode()
        dealer.maxmsgsize = MOST_BYTES
        dealer.sndhwm = dealer.rcvhwm = 10_000
        dealer.reconnect_ivl = 100
        if urgent:
            dealer.connect_timeout, dealer.reconnect_ivl = limits.TRIED_MS, limits.TRIED_MS // 5
        dealer.handshake_ivl = 15_000
        monitor = dealer.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_CONNECTED
            | zmq.EVENT_DISCONNECTED
        )
        dealer.connect(offer.endpoint)
        return _Dialled(dealer, monitor, time.monotonic() + limits.ANSWERS_S)

    def _sockets(self) -> list[Any]:
        used = [] if self._used is None else [self._used.dealer, self._used.monitor]
        return used if self._second is None else [*used, self._second.monitor]

    @property
    def _peers(self) -> Any:
        return None if self._used is None else self._used.dealer

    def _read(self, socket: Any) -> None:
        if socket is self._peers:
            self._take(socket.recv_multipart(zmq.NOBLOCK))
            return
        told = recv_monitor_message(socket, zmq.NOBLOCK)
        if self._second is not None and socket is self._second.monitor:
            self._second.on(told)
            self._tick()
        elif self._used is not None:
            self._happened(self._used, told)

    def _say_hello(self, moves: bool = False) -> None:
        """Says who we are, which comes first. `moves`: from another connection to the head, which
        is closed as soon as it has answered."""
        self._sent = self._taken = 0  # of this connection
        self._send(Message("hello", {**self._hello, "moves": moves}))

    def _happened(self, used: _Dialled, told: Mapping[str, Any]) -> None:
        event, proving = told["event"], used.line is LineState.PROVING
        where = self.offer.endpoint[6:] if self.offer else ""
        used.on(told)
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._closed = 0
            self._say_hello()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._refuse(f"the head at {where} does not know this node's key")
        elif self._all_have_one_key:
            if proving and used.line is LineState.DIALLED:
                self._not_proved(used, event)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._refuse(f"what listens at {where} is not the head that the job's store names")

    def _tick(self) -> None:
        """Sees how the head stands, and goes from one connection to another one where it must."""
        listened_s, now_s, second = self._listening.total_s, time.monotonic(), self._second
        head = self._head
        if head.last_s < 0 and now_s - self._began_s > self._answer_s:
            head.on(Event.BE_MISSED)
        head.look(listened_s)
        if second is not None and now_s > second.until_s:
            second.line = after(LINES, second.line, Event.EXPIRE)
        match head.way(second.line if second is not None else None, listened_s):
            case Way.DIAL if self.offer is not None:
                self._second = self._dial(self.offer, urgent=True)
            case Way.DROP:
                _close(second)
                self._second = None
            case Way.MOVE:
                _close(self._left)
                self._left, self._used, self._second = self._used, second, None
                head.moved(listened_s)
                self._say_hello(moves=True)

    def _refuse(self, why: str) -> None:
        self.refusal = why
        self._head.on(Event.REFUSE)

    def _not_proved(self, used: _Dialled, event: int) -> None:
        """A head with another key closes, and says nothing: so does one that is just ending, and
        we come again. To what does not speak ZeroMQ's protocol we do not come again."""
        self._closed += 1
        no_peer = event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if (no_peer or self._closed >= CLOSED_TIMES) and self.offer is not None:
            where, self._closed = self.offer.endpoint, 0
            self._refuse(
                self.not_the_head
                or f"what listens at {where[6:]} is no head of distdebug, or has another job key"
            )
            used.dealer.disconnect(where)

    def _take(self, parts: list[bytes]) -> None:
        try:
            message = message_of(parts)
        except MessageError as error:
            self.say(f"the head has sent what this version does not know: {error}")
            return
        self._head.spoke(self._listening.total_s)
        if message.kind == "ping":
            unheard_s = message.data.get("unheard_s")
            self._head.unheard_s = unheard_s if type(unheard_s) is float else 0.0
            answer = {"t": message.data.get("t"), "n": time.monotonic_ns()}
            taken = message.data.get("taken")
            self._taken = taken if type(taken) is int else self._sent
            self._send(Message("pong", answer))
            return
        if message.kind == "hello":
            self._say_hello()
            return
        if message.kind == "welcome":
            _close(self._left)
            self._left = None
            self.welcome = message.data
        elif message.kind == "refused":
            self._refuse(f"the head has refused this node: {str(message.data.get('why'))[:300]}")
        self._inbox.put(0, message, self._intake, size_of(parts))

    def _send_handed(self, message: Message) -> None:
        self._send(message)
        self._handled += 1

    def _send(self, message: Message) -> None:
        if self._used is None or self._used.line is not LineState.PROVED:
            return  # what is said first is who we are
        with contextlib.suppress(zmq.ZMQError):  # not connected: the head's silence will tell
            self._used.dealer.send_multipart(message.parts(), zmq.NOBLOCK)
            self._sent += message.kind != "pong"


def _close(one: _Dialled | None) -> None:
    if one is not None:
        with contextlib.suppress(zmq.ZMQError):
            one.dealer.disable_monitor()
        one.monitor.close()
        one.dealer.close()
