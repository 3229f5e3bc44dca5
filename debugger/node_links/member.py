"""A node's end: connects to the head, and knows when the head has fallen silent."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from . import limits
from .agreed_keys import Pair
from .hearing import Heard
from .inbox import Intake, size_of
from .interfaces import InterfaceError, address_towards
from .link import Link, resend_steadily
from .messages import MOST_BYTES, Message, MessageError, message_of
from .offers import Offer, OfferError
from .relay import Relay
from .tree import BELOW

CLOSED_TIMES = 3
"""So often a listener may close while keys are proved; it is asked ten times a second."""
LATE_S, SILENT_S = 0.9, 1.6
"""A node whose relay has said nothing for so long asks the head for a connection, and after the
longer time goes over to that: the head misses the relay later than that, and is to have heard of
those below it by then.

So does a node that speaks to the head itself. Where four packets or more are on the way when a
network fails, Linux takes no notice of `resend_steadily`: what was lost goes out once more after
1.6 s, and then after 3.2 s. A new connection gets through as soon as there is a network."""


@dataclass(slots=True)
class _Next:
    """Who is tried: the relay at `offer`, or (None) the head itself; until when. `answered`: its
    host has taken a connection; `proving`, `proved`: the keys of both ends, just now."""

    offer: Offer | None
    until_s: float
    dealer: Any
    monitor: Any
    answered: bool = False
    proving: bool = False
    proved: bool = False


class Connection(Link):
    """To the head at `offer`. `hello` is what is said of this node.

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
        """What is said of a listener there that is not the head."""
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
        self.interface = ""
        """Where to listen as a relay, if that was said."""
        self._relay: Relay | None = None
        self._to_hand_up: deque[list[bytes]] = deque()
        self._via: Offer | None = None
        """The relay through which the head is spoken to."""
        self._via_heard = Heard()
        self._via_head_s = self._via_since_s = self._via_closed_s = 0.0
        self._via_welcomed = False
        self._next: _Next | None = None
        self._unheard_s = 0.0
        """For how long the head, or the relay, has heard nothing of us, by its own word."""
        self._went_over_s = -LATE_S
        self._before: tuple[Any, Any] | None = None
        """The connection that was left, until the head has answered on the one that followed."""

    def connect(self, offer: Offer, hello: Mapping[str, Any]) -> None:
        """Meet the head there."""
        self.offer, self._hello = offer, hello
        self._began_s = time.monotonic()
        self.start()

    def send(self, message: Message) -> None:
        """To the head."""
        self._handed += 1
        self.later(lambda: self._send_handed(message))

    def received(self) -> list[Message]:
        """What has come since the last call, in order."""
        return [message for _, message in self._inbox.taken()]

    @property
    def via(self) -> str:
        """The relay through which the head is spoken to; "" where that is none."""
        via = self._via
        return "" if via is None else via.endpoint[6:]

    @property
    def ahead(self) -> int:
        """So many messages are on the way that the head has not taken in, as far as it has said."""
        return self._handed - self._handled + self._sent - self._taken

    @property
    def silent_s(self) -> float:
        """For how long the head has said nothing, while this node listened; before it has ever
        spoken, 0."""
        return self._heard.silent_s(self._listening.total_s)

    @property
    def absent_s(self) -> float:
        """For how long this process was not run (suspended, or its machine was), if nothing was
        heard of the head since then; else 0."""
        return self._listening.absent_s if self._heard.since_absent(self._listening) else 0.0

    @property
    def lost(self) -> str:
        """Why there is no head (any more), in words; "" while there is one, or may be."""
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
        """To whoever listens there: a connection, and what is told of it. `urgent`: the network may
        be back at any moment."""
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
        following = None if self._next is None else self._next.monitor
        return [one for one in (self._dealer, self._monitor, following) if one is not None]

    @property
    def _peers(self) -> Any:
        return self._dealer

    def _read(self, socket: Any) -> None:
        if socket is self._dealer:
            self._take(socket.recv_multipart(zmq.NOBLOCK))
            return
        told = recv_monitor_message(socket, zmq.NOBLOCK)
        if socket is not self._monitor:
            self._happened_next(told)
        elif self._via is not None:
            self._happened_via(told)
        else:
            self._happened(told)

    def _proved(self, moves: bool = False) -> None:
        """Both ends have: what is said first is who we are. `moves`: from another connection to the
        head, which is closed as soon as it has answered."""
        self.connected = True
        self._say_hello(moves)
        if self._relay is not None:
            self._relay.begin_anew()

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

    def _go_below(self, offer: Offer) -> None:
        """Try to reach that relay; until it is reached all stays as it is."""
        if self._relay is None and self._via is None and self._next is None:
            until_s = time.monotonic() + limits.ANSWERS_S
            self._next = _Next(offer, until_s, *self._dial(offer))

    def _happened_next(self, told: Mapping[str, Any]) -> None:
        following, event = self._next, told["event"]
        if following is None:
            return
        following.proving = event == zmq.EVENT_CONNECTED
        following.proved = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if following.proving:
            resend_steadily(told["value"])
            if not following.answered and following.offer is None and self._via is not None:
                self._head_is_there()
            following.answered = True
        self._go_over()

    def _head_is_there(self) -> None:
        """Its host takes connections, and the relay is silent: it has as long as ever to speak. One
        that the relay had missed already has not."""
        if self._via_head_s < limits.HEAD_SPOKE_S:
            self._heard.spoke(self._listening.total_s)

    def _go_over(self) -> None:
        """To whoever was tried and has answered, if it is time."""
        following = self._next
        if following is None or not following.proved:
            return
        if following.offer is None and not self._uneasy(SILENT_S):
            return
        self._close_before()
        self._before, moves = (self._dealer, self._monitor), self._via is None
        self._via, self._dealer, self._monitor = (
            following.offer,
            following.dealer,
            following.monitor,
        )
        self._next, self._proving, self._unheard_s = None, False, 0.0
        self._went_over_s = self._listening.total_s
        self._via_heard, self._via_welcomed, self._via_head_s = Heard(), False, 0.0
        self._via_since_s, self._via_closed_s = time.monotonic(), 0.0
        self._via_heard.spoke(self._listening.total_s)
        self._proved(moves)

    def _close_before(self) -> None:
        if self._before is not None:
            _close(*self._before)
            self._before = None

    def _happened_via(self, told: Mapping[str, Any]) -> None:
        event = told["event"]
        if event == zmq.EVENT_CONNECTED:
            resend_steadily(told["value"])
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._via_closed_s = 0.0
            self._proved()
        else:
            self.connected = False
            self._via_closed_s = self._via_closed_s or time.monotonic()

    def _uneasy(self, after_s: float) -> bool:
        """Whether it is time to dial the head anew: it is silent for so long, or does not hear us;
        or the relay is, or has closed, or says that the head is silent, or has never led to it."""
        if self._via is None:
            return max(self.silent_s, self._unheard_s) > after_s
        now_s = time.monotonic()
        silent_s = self._via_heard.silent_s(self._listening.total_s)
        closed = self._via_closed_s and now_s - self._via_closed_s > limits.RELAY_CLOSED_S
        useless = not self._via_welcomed and now_s - self._via_since_s > limits.ANSWERS_S
        silent_s = max(silent_s, self._unheard_s, self._via_head_s)
        return silent_s > after_s or bool(closed or useless)

    def _tick(self) -> None:
        following, late = self._next, self._uneasy(LATE_S)
        if following is not None and following.offer is not None:
            if late or time.monotonic() > following.until_s:
                self._give_up_next()
            return
        # A connection is left when the head has answered on another one, and it may have spoken
        # again by then: who broke with it at once would be missed after an interruption that loses
        # nobody.
        if following is None:
            if late and self.offer is not None and not self.refusal:
                self._dial_the_head(self.offer)
        elif late:
            self._go_over()
        elif following.proved or (not following.proving and time.monotonic() > following.until_s):
            # Not before keys are proved: the head would count it as an attempt without one.
            self._give_up_next()

    def _dial_the_head(self, offer: Offer) -> None:
        now_s = self._listening.total_s
        if self._via is None and now_s - self._went_over_s < LATE_S:
            return  # it has just been found again, and is about to speak
        silent_s = max(self._via_heard.silent_s(now_s), self._unheard_s)
        urgent = self._via is None or silent_s > LATE_S
        until_s = time.monotonic() + limits.ANSWERS_S
        self._next = _Next(None, until_s, *self._dial(offer, urgent))

    def _give_up_next(self) -> None:
        if self._next is not None:
            _close(self._next.dealer, self._next.monitor)
            self._next = None

    def _of_the_tree(self, message: Message) -> None:
        """What the head has a node do for others, or with them."""
        key, offer = message.data.get("key"), message.data.get("offer")
        if message.kind == "hello":
            self._say_hello()
        elif message.kind == "relay":
            self._begin_relay()
        elif message.kind == "allow" and self._relay is not None and isinstance(key, str):
            self._relay.allow(key)
        elif message.kind == "through":
            with contextlib.suppress(OfferError):
                self._go_below(Offer.of(str(offer)))

    def _begin_relay(self) -> None:
        offer = ""
        try:
            assert self.offer is not None
            if self._relay is None:
                address = address_towards(self.offer.address, self.interface)
                self._relay = Relay(address, self.say, self._hand_up, lambda: self.silent_s)
            offer = self._relay.offer.text()
        except (InterfaceError, OSError) as error:
            self.say(f"this node cannot hand on what others say: {error}")
        self._send_parts(Message("relaying", {"port": int(bool(offer)), "offer": offer}).parts())

    def _hand_up(self, parts: list[bytes]) -> None:
        """From the relay's thread."""
        self._to_hand_up.append(parts)
        self.later(self._send_up)

    def _send_up(self) -> None:
        self._send_parts(self._to_hand_up.popleft())

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
        if parts[0] == BELOW:
            self._heard.spoke(self._listening.total_s)
            if self._relay is not None and len(parts) > 2:
                self._relay.down(parts[1], parts[2:])
            return
        try:
            message = message_of(parts)
        except MessageError as error:
            self.say(f"the head has sent what this version does not know: {error}")
            return
        self._has_spoken(message)
        if message.kind == "ping":
            answer = {"t": message.data.get("t"), "n": time.monotonic_ns()}
            taken = message.data.get("taken")
            self._taken = taken if type(taken) is int else self._sent
            self._send(Message("pong", answer))
            if self._relay is not None:
                self._relay.taken(message.data.get("below"))
            return
        if message.kind in ("hello", "relay", "allow", "through"):
            self._of_the_tree(message)
            return
        if message.kind == "welcome":
            self._close_before()
            self.welcome = message.data
            self._via_welcomed = True
        elif message.kind == "refused":
            self.refusal = f"the head has refused this node: {str(message.data.get('why'))[:300]}"
        self._inbox.put(0, message, self._intake, size_of(parts))

    def _has_spoken(self, message: Message) -> None:
        """The head, or its relay, which says with each ping for how long the head is silent."""
        now_s = self._listening.total_s
        if message.kind == "ping":
            unheard_s = message.data.get("unheard_s")
            self._unheard_s = unheard_s if type(unheard_s) is float else 0.0
        silent_s = message.data.get("head_s", 0.0)
        if self._via is None or message.kind != "ping" or type(silent_s) is not float:
            silent_s = 0.0
        self._via_heard.spoke(now_s)
        self._via_head_s = silent_s
        spoke_s = max(0.0, now_s - (silent_s if silent_s > limits.HEAD_PINGS_S else 0.0))
        if self._heard.last_s < spoke_s:
            self._heard.spoke(spoke_s)

    def _send_handed(self, message: Message) -> None:
        self._send(message)
        self._handled += 1

    def _send(self, message: Message) -> None:
        if not self.connected:
            return  # what is said first is who we are
        if self._send_parts(message.parts()):
            self._sent += message.kind != "pong"

    def _send_parts(self, parts: list[bytes]) -> bool:
        if not self.connected:
            return False
        try:
            self._dealer.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False  # not connected: the head's silence will tell
        return True

    # -- at the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Those below this node get the time to leave by it."""
        relay = self._relay
        if relay is not None:
            until_s = time.monotonic() + limits.EMPTY_S
            while self.is_alive() and not relay.empty and time.monotonic() < until_s:
                time.sleep(0.02)
            relay.close()
        super().close()


def _close(dealer: Any, monitor: Any) -> None:
    with contextlib.suppress(zmq.ZMQError):
        dealer.disable_monitor()
    monitor.close()
    dealer.close()
