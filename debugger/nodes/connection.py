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
from .clocks import Heard
from .keys import Offer, Pair
from .link import Link, resend_steadily
from .messages import MOST_BYTES, Intake, Message, MessageError, message_of, size_of

CLOSED_TIMES = 3
"""So often a listener may close while keys are proved; it is asked ten times a second."""
LATE_S, SILENT_S = 0.9, 1.6
"""A node whose head has said nothing for so long dials it anew, and after the longer time speaks by
that connection: the head takes a node for lost later than that, and is to have heard of it by then.

Where four packets or more are on the way when a network fails, Linux takes no notice of
`resend_steadily`: what was lost goes out once more after 1.6 s, and then after 3.2 s. A new
connection gets through as soon as there is a network."""


@dataclass(slots=True)
class _Dialled:
    """A further connection to the head, until it is used or given up. `proving`, `proved`: the keys
    of both ends, just now."""

    dealer: Any
    monitor: Any
    until_s: float
    proving: bool = False
    proved: bool = False


class Connection(Link):
    """The connection to the head at `offer`. `hello` is what is said of this node.

    It begins with `connect`; until then it has a key and nothing else. `pair`: where all nodes have
    keys of the job (see `agreed_keys`), and none is told the head; such a head may come up to
    `answer_s` later than its nodes.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        pair: Pair | None = None,
        answer_s: float = limits.HEAD_ANSWERS_S,
    ) -> None:
        super().__init__("distdebug-node", say, pair)
        self._answer_s = answer_s
        self._all_have_one_key = pair is not None
        self._closed = 0
        self._proving = self.connected = False
        self.not_the_head = ""
        """The sentence about a listener there that is not the head."""
        self.offer: Offer | None = None
        self._hello: Mapping[str, Any] = {}
        self._intake = Intake()
        self._handed = self._handled = 0
        """Messages given to the thread, and those that it has dealt with."""
        self._sent = self._taken = 0
        self._began_s = 0.0
        self._heard = Heard()
        self.welcome: Mapping[str, Any] | None = None
        self.refusal = ""
        self._dealer: Any = None
        self._monitor: Any = None
        self._anew: _Dialled | None = None
        self._unheard_s = 0.0
        """For how long the head has heard nothing of us, by its own word."""
        self._failed_over_s = -LATE_S
        self._before: tuple[Any, Any] | None = None
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
        return self._heard.silent_s(self._listening.total_s)

    @property
    def absent_s(self) -> float:
        """The seconds for which this process was not run (suspended, or its machine was), if
        nothing was heard of the head since then; else 0."""
        return self._listening.absent_s if self._heard.since_absent(self._listening) else 0.0

    @property
    def lost(self) -> str:
        """The reason why there is no head (any more), in words; "" while there is one, or may
        be."""
        if self.refusal:
            return self.refusal
        if self.failure:
            return f"the link to the head is off: {self.failure}"
        where = f"the head at {self.offer.endpoint[6:]}" if self.offer else "the head"
        if self._heard.last_s >= 0:
            silent_s = self.silent_s
            if silent_s < limits.LOST_AFTER_S:
                return ""
            if absent_s := self.absent_s:
                return f"this node was not run for {absent_s:.1f} s, and {where} has given it up"
            return f"{where} ({self.host}) has said nothing for {silent_s:.1f} s"
        if self._began_s and time.monotonic() - self._began_s > self._answer_s:
            waited = f" within {self._answer_s:.0f} s" if self._all_have_one_key else ""
            return f"{where} does not answer{waited}"
        return ""

    @property
    def host(self) -> str:
        """The head's."""
        return self.offer.host if self.offer else ""

    # -- in the thread -------------------------------------------------------------------------

    def _open(self) -> None:
        assert self.offer is not None
        self._dealer, self._monitor = self._dial(self.offer)

    def _dial(self, offer: Offer, urgent: bool = False) -> tuple[Any, Any]:
        """Dials whoever listens there, and returns a connection and what is told of it. `urgent`:
        the network may be back at any moment."""
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
        return dealer, monitor

    def _sockets(self) -> list[Any]:
        anew = None if self._anew is None else self._anew.monitor
        return [one for one in (self._dealer, self._monitor, anew) if one is not None]

    @property
    def _peers(self) -> Any:
        return self._dealer

    def _read(self, socket: Any) -> None:
        if socket is self._dealer:
            self._take(socket.recv_multipart(zmq.NOBLOCK))
            return
        told = recv_monitor_message(socket, zmq.NOBLOCK)
        if socket is self._monitor:
            self._happened(told)
        else:
            self._happened_anew(told)

    def _proved(self, moves: bool = False) -> None:
        """Both ends have: what is said first is who we are. `moves`: from another connection to the
        head, which is closed as soon as it has answered."""
        self.connected = True
        self._say_hello(moves)

    def _say_hello(self, moves: bool = False) -> None:
        self._sent = self._taken = 0  # of this connection
        self._send(Message("hello", {**self._hello, "moves": moves}))

    def _happened(self, told: Mapping[str, Any]) -> None:
        event = told["event"]
        where = self.offer.endpoint[6:] if self.offer else ""
        self.connected = self.connected and event != zmq.EVENT_DISCONNECTED
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._closed, self._proving = 0, False
            self._proved()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refusal = f"the head at {where} does not know this node's key"
        elif event == zmq.EVENT_CONNECTED:
            self._proving = True
            resend_steadily(told["value"])
        elif self._all_have_one_key:
            self._not_proved(event)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self.refusal = f"what listens at {where} is not the head that the job's store names"

    # -- in the thread, from one connection to another one -------------------------------------

    def _unanswered(self, after_s: float) -> bool:
        """Whether the head has said nothing, or heard nothing of us, for longer than that."""
        return max(self.silent_s, self._unheard_s) > after_s

    def _tick(self) -> None:
        anew, late = self._anew, self._unanswered(LATE_S)
        # A connection is left when the head has answered on another one, and it may have spoken
        # again by then: who broke with it at once would be missed after an interruption that loses
        # nobody.
        if anew is None:
            # where we failed over a moment ago, the head is about to speak.
            rested = self._listening.total_s - self._failed_over_s >= LATE_S
            if late and rested and self.offer is not None and not self.refusal:
                until_s = time.monotonic() + limits.ANSWERS_S
                self._anew = _Dialled(*self._dial(self.offer, urgent=True), until_s)
        elif late:
            self._fail_over()
        elif anew.proved or (not anew.proving and time.monotonic() > anew.until_s):
            # Not before keys are proved: the head would count it as an attempt without one.
            _close(anew.dealer, anew.monitor)
            self._anew = None

    def _happened_anew(self, told: Mapping[str, Any]) -> None:
        anew, event = self._anew, told["event"]
        if anew is None:
            return
        anew.proving = event == zmq.EVENT_CONNECTED
        anew.proved = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if anew.proving:
            resend_steadily(told["value"])
        self._fail_over()

    def _fail_over(self) -> None:
        """Fails over to the connection that was dialled anew, if both ends have proved their keys
        and the head is still not heard by the one before."""
        anew = self._anew
        if anew is None or not anew.proved or not self._unanswered(SILENT_S):
            return
        self._close_before()
        self._before = (self._dealer, self._monitor)
        self._dealer, self._monitor, self._anew = anew.dealer, anew.monitor, None
        self._proving, self._unheard_s = False, 0.0
        self._failed_over_s = self._listening.total_s
        self._proved(moves=True)

    def _close_before(self) -> None:
        if self._before is not None:
            _close(*self._before)
            self._before = None

    # -- in the thread -------------------------------------------------------------------------

    def _not_proved(self, event: int) -> None:
        """A head with another key closes, and says nothing: so does one that is just ending, and
        we come again. To what does not speak ZeroMQ's protocol we do not come again."""
        if not self._proving:
            return  # it was there, and is gone: its silence will tell
        self._proving = False
        self._closed += 1
        no_peer = event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if (no_peer or self._closed >= CLOSED_TIMES) and self.offer is not None:
            where, self._closed = self.offer.endpoint, 0
            self.refusal = self.not_the_head or (
                f"what listens at {where[6:]} is no head of distdebug, or has another job key"
            )
            self._dealer.disconnect(where)

    def _take(self, parts: list[bytes]) -> None:
        try:
            message = message_of(parts)
        except MessageError as error:
            self.say(f"the head has sent what this version does not know: {error}")
            return
        self._heard.spoke(self._listening.total_s)
        if message.kind == "ping":
            unheard_s = message.data.get("unheard_s")
            self._unheard_s = unheard_s if type(unheard_s) is float else 0.0
            answer = {"t": message.data.get("t"), "n": time.monotonic_ns()}
            taken = message.data.get("taken")
            self._taken = taken if type(taken) is int else self._sent
            self._send(Message("pong", answer))
            return
        if message.kind == "hello":
            self._say_hello()
            return
        if message.kind == "welcome":
            self._close_before()
            self.welcome = message.data
        elif message.kind == "refused":
            self.refusal = f"the head has refused this node: {str(message.data.get('why'))[:300]}"
        self._inbox.put(0, message, self._intake, size_of(parts))

    def _send_handed(self, message: Message) -> None:
        self._send(message)
        self._handled += 1

    def _send(self, message: Message) -> None:
        if not self.connected:
            return  # what is said first is who we are
        with contextlib.suppress(zmq.ZMQError):  # not connected: the head's silence will tell
            self._dealer.send_multipart(message.parts(), zmq.NOBLOCK)
            self._sent += message.kind != "pong"


def _close(dealer: Any, monitor: Any) -> None:
    with contextlib.suppress(zmq.ZMQError):
        dealer.disable_monitor()
    monitor.close()
    dealer.close()
