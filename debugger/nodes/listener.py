"""The head's end: listens on one interface, and takes only nodes whose key the job has told it.

Who may speak is decided before a byte is parsed (`keys.KnownKeys`).
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from ..record.limits import MOST_RANKS
from ..record.reading.copies import FEW_NODES
from . import limits
from .keys import SCHEMA, KeyPair, KnownKeys, Offer
from .limits import PING_EVERY_S, TAKE_EVERY_S, UNHEARD_S
from .link import Link, resend_steadily
from .many_nodes import ping_every_s
from .messages import MOST_BYTES, Intake, Message, MessageError, message_of, size_of
from .presence import STANDINGS, Event, Offset, Peer, Standing

PONGS_S, REST_S = 0.05, 0.025
"""The pause after a ping in which the answers of many nodes are read at once, since clocks are
compared by when an answer comes, and the pause between two reads after that: to wake up for each
message costs more than to take it."""
MOST_NODES = 1 << 14
OTHER_DESCRIPTORS = 4096
"""The descriptors of the head's own process, beside one for each node."""
MOST_TASK = 200
MOST_WAITING_EACH = 64
"""Messages of one node that wait in ZeroMQ's own queue; beyond these they wait on the node."""
_COPIED_BYTES = 1024
_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Numbers: to combine flags of an enumeration takes longer than to send a part."""


@dataclass(slots=True)
class Node:
    """A node as the head knows it. `number` counts from 1; the head itself is 0. `key` is of no
    other node: its public key, or where all have one, what it has made up. `task`, `ranks`: see
    Several.
    """

    number: int
    key: str
    host: str
    address: str = ""
    task: str = ""
    ranks: int = 0
    heard_ns: int = 0
    offset: Offset = field(default_factory=Offset)
    peer: Peer = field(default_factory=Peer)
    intake: Intake = field(default_factory=Intake)


class Listener(Link):
    """Listens from its construction on. Raises OSError where it cannot. `port`: 0 for any;
    `pair`: where all nodes have keys of the job (see `keys`)."""

    def __init__(
        self,
        address: str,
        host: str,
        say: Callable[[str], None],
        port: int = 0,
        pair: KeyPair | None = None,
    ) -> None:
        super().__init__("distdebug-head", say, pair)
        self._all_have_one_key = pair is not None
        self._address, self._host = address, host
        self._identities: dict[int, bytes] = {}
        """The identity of each node's connection, as ZeroMQ tells them apart."""
        self._numbers: dict[bytes, int] = {}
        self._pinged_s = self._missed_s = 0.0
        self._stirred: deque[int] = deque()
        self._leaving = 0
        self._accepted = 0
        """Connections, without those that were refused."""
        self.nodes: dict[int, Node] = {}
        self.welcome: dict[str, Any] = {}
        self.task = ""
        self.admitted = 0
        self._keys = KnownKeys(self.context)
        _allow_descriptors(MOST_NODES + OTHER_DESCRIPTORS)
        self._router = self.socket(zmq.ROUTER, address)
        self._router.curve_server = True
        self._router.zap_domain = b"distdebug"
        self._router.maxmsgsize = MOST_BYTES
        self._router.router_mandatory = True
        self._router.handshake_ivl = 15_000
        self._router.sndhwm, self._router.rcvhwm = 10_000, MOST_WAITING_EACH
        try:
            self._router.bind(f"{Offer(address, 1, '').endpoint.rpartition(':')[0]}:{port or '*'}")
        except zmq.ZMQError as error:
            self._keys.socket.close()
            self._router.close()
            self.close()
            where = f"{address} port {port}" if port else address
            raise OSError(error.errno, f"cannot listen at {where}: {error}") from error
        self.port = int(self._router.last_endpoint.decode().rstrip("\0").rpartition(":")[2])
        self._monitor = self._router.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
        )
        self.start()

    @property
    def offer(self) -> Offer:
        """Returns what the others need to know."""
        return Offer(self._address, self.port, self.key, self._host)

    @property
    def absent_s(self) -> float:
        """The seconds for which this process was not run (suspended, or its machine was) a moment
        ago; else 0."""
        listening = self._listening
        recent = listening.total_s - listening.absent_at_s < limits.LOST_AFTER_S
        return listening.absent_s if recent else 0.0

    def allow(self, key: str) -> None:
        """The node that holds this key is of the job."""
        self.admitted += 1
        self.later(lambda: self._keys.allow(key))

    def give_up(self, number: int) -> None:
        """The node was missed, and is lost from here on."""
        self.later(lambda: self.nodes[number].peer.on(Event.BE_GIVEN_UP))

    def send(self, number: int, message: Message) -> None:
        """Sends to one node; lost where that is not there."""
        self.later(lambda: self._send(number, message))

    def broadcast(self, message: Message) -> None:
        """Sends to all that are there."""
        self.later(lambda: self._broadcast(message))

    def received(self) -> Iterable[tuple[int, Message]]:
        """Returns what has come since the last call, in order, with the number of the node; each
        counts as taken in when it is asked for."""
        return self._inbox.taken()

    def stirred(self) -> Collection[int]:
        """Returns the nodes of which something else is new since the last call: they have fallen
        silent, or their clock is known better. Of thousands of nodes these are few."""
        return {self._stirred.popleft() for _ in range(len(self._stirred))}

    # -- in the thread -------------------------------------------------------------------------

    def _sockets(self) -> list[Any]:
        return [self._router, self._keys.socket, self._monitor]

    @property
    def _peers(self) -> Any:
        return self._router

    def _read(self, socket: Any) -> None:
        if socket is self._keys.socket:
            self._keys.read()
        elif socket is self._monitor:
            self._happened(recv_monitor_message(socket, zmq.NOBLOCK))
        else:
            # A frame of ZeroMQ's own knows whose key it came with, and whether others follow, which
            # takes longer to ask the socket.
            sender = frame = socket.recv(_NOW, copy=False)
            parts = []
            while frame.more:
                frame = socket.recv(_NOW, copy=False)
                parts.append(frame.bytes)
            self._take(sender, parts)

    def _tick(self) -> None:
        now_s, listened_s = time.monotonic(), self._listening.total_s
        every_s = ping_every_s(len(self._identities), PING_EVERY_S)
        if now_s - self._missed_s >= TAKE_EVERY_S:
            self._missed_s = now_s
            for number in self._identities:
                node = self.nodes[number]
                if node.peer.look(listened_s, every_s) is Standing.MISSED:
                    self._stirred.append(number)
        for address in self._keys.refused(now_s):
            self.say(f"refused {address}: its key is none of this job's nodes")
        if now_s - self._pinged_s >= every_s:
            self._pinged_s = now_s
            for number in self._identities:
                # Each with its own time: clocks are compared by it.
                self._send(number, self._ping(self.nodes[number]))
                self.nodes[number].peer.asked(listened_s)

    def _rest_s(self) -> float:
        if len(self.nodes) <= FEW_NODES or self._keys.waiting:
            return 0.0
        since_s = time.monotonic() - self._pinged_s
        every_s = ping_every_s(len(self._identities), PING_EVERY_S)
        return 0.0 if since_s < PONGS_S else max(0.0, min(REST_S, every_s - since_s))

    def _ping(self, node: Node) -> Message:
        data: dict[str, Any] = {"t": time.monotonic_ns(), "taken": node.intake.total}
        unheard_s = node.peer.silent_s(self._listening.total_s)
        if unheard_s > UNHEARD_S:
            data["unheard_s"] = round(unheard_s, 3)
        return Message("ping", data)

    def _heard(self, node: Node) -> None:
        node.heard_ns = time.monotonic_ns()
        node.peer.spoke(self._listening.total_s)

    def _happened(self, told: Mapping[str, Any]) -> None:
        """Takes an event of a connection. Which one is not told: of those that close while others
        still prove their keys, one of these is meant, or was about to be let in.

        Who is let in is known by the answer about its key: that the handshake has succeeded is told
        only when ZeroMQ's thread comes round again, and a node that has no use for the connection
        any more may have closed it by then.
        """
        event = told["event"]
        proving = self._accepted - self._keys.let_in
        if event == zmq.EVENT_ACCEPTED:
            self._accepted += 1
            resend_steadily(told["value"])
        elif event == zmq.EVENT_DISCONNECTED and self._leaving:
            self._leaving -= 1  # that of a node that speaks by another one now
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL or proving > 0:
            self._accepted -= proving > 0 and event == zmq.EVENT_DISCONNECTED
            self.say(
                "refused a connection to the head: what came is not distdebug's protocol, "
                "or it was made with another key"
            )

    def _take(self, sender: zmq.Frame, parts: list[bytes]) -> None:
        identity = sender.bytes
        number = self._numbers.get(identity)
        try:
            message = message_of(parts)
            if number is None:
                if message.kind == "hello":
                    key, address = sender.get("User-Id"), sender.get("Peer-Address")
                    self._greet(identity, str(key), message, str(address))
                return  # of a connection that came again: its hello follows, and tells all anew
        except (MessageError, zmq.ZMQError, IndexError, UnicodeDecodeError) as error:
            self.say(f"refused what a node has sent: {error}")
            if number is not None:
                self.nodes[number].intake.refused += 1
            return
        node = self.nodes[number]
        self._heard(node)
        if message.kind == "bye":
            node.peer.on(Event.LEAVE)
        if message.kind == "pong":
            sent, theirs = message.data.get("t"), message.data.get("n")
            if (
                type(sent) is int
                and type(theirs) is int
                and node.offset.exchanged(sent, theirs, node.heard_ns)
            ):
                self._stirred.append(number)
        else:
            self._inbox.put(number, message, node.intake, size_of(parts))

    def _greet(self, identity: bytes, key: str, message: Message, address: str) -> None:
        if self._all_have_one_key:
            key = f"{key}/{str(message.data.get('id'))[:64]}"
        known = next((one for one in self.nodes.values() if one.key == key), None)
        why = self._why_not(key, known, message)
        if why:
            self.say(f"refused a node at {address}: {why}")
            self._send_to(identity, Message("refused", {"why": why}).parts())
            return
        number = known.number if known is not None else len(self.nodes) + 1
        self._leaving += known is not None and message.data.get("moves") is True
        host = str(message.data.get("host", ""))[:255]
        task = str(message.data.get("task", ""))[:MOST_TASK]
        ranks = message.data.get("ranks")
        starts = ranks if type(ranks) is int and 0 < ranks <= MOST_RANKS else 0
        node = known or Node(number, key, host, address, task, starts)
        self._heard(node)
        # A node whose connection broke for a moment comes again, and tells everything anew.
        self._numbers.pop(self._identities.get(number, b""), None)
        self._numbers[identity], self._identities[number] = number, identity
        node.intake = Intake()
        self.nodes[number] = node
        self._send(number, Message("welcome", {**self.welcome, "node": number}))
        self._send(number, self._ping(node))
        node.peer.asked(self._listening.total_s)
        self._inbox.put(number, message, node.intake, size_of([]))

    def _why_not(self, key: str, known: Node | None, message: Message) -> str:
        """Tells why this cannot be a node of the job; "" if it can."""
        schema = str(message.data.get("schema"))[:40]
        if schema != SCHEMA:
            return f"it speaks {schema!r}, this is {SCHEMA!r}: install one version on all nodes"
        theirs, ours = str(message.data.get("version"))[:40], str(self.welcome.get("version"))
        if theirs != ours:
            return f"it runs distdebug {theirs}, the head {ours}: install one version on all nodes"
        if known is not None and known.peer.standing is Standing.LOST:
            return "it was taken for lost"
        if len(self.nodes) >= MOST_NODES:
            return f"the head takes {MOST_NODES} nodes"
        return self._twice(key, str(message.data.get("task", ""))[:MOST_TASK])

    def _twice(self, key: str, task: str) -> str:
        """Names another of those that are there that says it is this task; "" if there is none."""
        if not task:
            return ""
        other = "the head" if task == self.task else ""
        for node in self.nodes.values():
            if node.task == task and node.key != key and STANDINGS[node.peer.standing]:
                other = f"node {node.number} ({node.host})"
        if not other:
            return ""
        return f"it is {task}, and so is {other}: start distdebug once for each task of the job"

    def _send(self, number: int, message: Message) -> None:
        self._send_parts(number, message.parts())

    def _send_parts(self, number: int, parts: Sequence[bytes | zmq.Frame]) -> None:
        identity = self._identities.get(number)
        if identity is not None:
            self._send_to(identity, parts)

    def _send_to(self, identity: bytes, parts: Sequence[bytes | zmq.Frame]) -> None:
        few = all(type(one) is bytes and len(one) < _COPIED_BYTES for one in parts)
        try:
            # Of a few bytes a copy costs less than a frame that is kept for them.
            for part in (identity, *parts[:-1]):
                self._router.send(part, _NOW_AND_MORE, copy=few)
            self._router.send(parts[-1], _NOW, copy=few)
        except zmq.ZMQError:
            return  # it is not connected: its silence will tell

    def _broadcast(self, message: Message) -> None:
        # Frames, which what waits for 2,048 nodes has in common: of bytes each would have a copy.
        frames = [zmq.Frame(part) for part in message.parts()]
        for number in list(self._identities):
            self._send_parts(number, frames)


def _allow_descriptors(wanted: int) -> None:
    """Raises this process's soft limit of open files towards `wanted`, as far as the hard one goes:
    the usual soft limit is 1,024. The run's command is below the warden, which was started before,
    and keeps the limit that the user has set."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
