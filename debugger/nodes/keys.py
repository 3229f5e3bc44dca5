"""Keys decide who may speak: those of nodes, the offer by which they find their head, who is taken.

Nodes that were given one job key derive two pairs of CurveZMQ keys from it, one for the head and
one for all others. Whoever has the job key can derive both, and nobody else either of them: the
head proves by its pair that it has the job key, and so does each node by the other. Versions of
distdebug derive the same, so that nodes of two versions come to speak, and say that they are of two
versions.

Else an offer, an address and a public key, goes through the job's own store. The pair was made for
this run: whoever reads the store learns where the head listens and can check that it is the head,
and can say nothing to it.

ZeroMQ asks about each public key that another side has proved to hold (ZAP), before a byte of what
it says is parsed. A key that is not known yet is kept waiting for a moment, since the job's store
may tell it a little later than the node connects.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import zmq
from zmq.utils import z85

from ..record.safe_files import object_of
from .limits import HEAD_ANSWERS_S


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A pair of keys as ZeroMQ writes them, 40 letters each."""

    public: bytes
    secret: bytes = field(repr=False)


def head_pair(job_key: bytes) -> KeyPair:
    """Returns the keys of the node that listens."""
    return _pair(job_key, b"distdebug head")


def node_pair(job_key: bytes) -> KeyPair:
    """Returns the keys of all other nodes."""
    return _pair(job_key, b"distdebug node")


def _pair(job_key: bytes, label: bytes) -> KeyPair:
    """BLAKE2b keyed by the digest of the job key, which may be longer than a key of BLAKE2b."""
    root = hashlib.blake2b(job_key, digest_size=64, person=b"distdebug key").digest()
    secret = z85.encode(hashlib.blake2b(label, digest_size=32, key=root).digest())
    return KeyPair(zmq.curve_public(secret), secret)


SCHEMA = "distdebug.nodes/2"
MOST_BYTES = 1024
"""The most bytes of an offer in the store."""
_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""Z85, in which ZeroMQ writes its keys of 32 bytes."""


class OfferError(ValueError):
    """The entry in the store is no offer that this version can take; the sentence says why."""


def is_key(text: str) -> bool:
    """Whether this can be a public key."""
    return _KEY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Offer:
    """The address at which a supervisor listens, and its public key."""

    address: str
    port: int
    key: str
    host: str = ""

    def text(self) -> str:
        """Returns one line of JSON, as it stands in the store."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Offer:
        """Raises OfferError."""
        value = object_of(text.encode("utf-8", "replace")[: MOST_BYTES + 1])
        schema = str(value.get("schema"))
        if not schema.startswith("distdebug.nodes/"):
            raise OfferError("what stands in the job's store for distdebug is none of its offers")
        address, port, key = str(value.get("address")), value.get("port"), str(value.get("key"))
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(address)
            # Also of another version, where that has kept the form: the head then refuses the node,
            # and both say why. A node that stayed away would be said by itself alone.
            if type(port) is int and 0 < port < 1 << 16 and is_key(key):
                return cls(address, port, key, str(value.get("host", ""))[:255])
        if schema == SCHEMA:
            raise OfferError(
                "the head's offer in the job's store lacks an address, a port or a key"
            )
        raise OfferError(
            f"the head speaks {schema[:40]!r}, and this distdebug {SCHEMA!r}: "
            "install one version on all nodes"
        )

    @property
    def endpoint(self) -> str:
        """The address as ZeroMQ names it."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"tcp://{address}:{self.port}"


MOST_WAITING = 1024
_ZAP = "inproc://zeromq.zap.01"


class KnownKeys:
    """The known keys of one context. All is called from the link's thread, but for the
    construction."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.allowed: set[str] = set()
        self.let_in = 0
        """Connections whose other end has proved to hold a key that is allowed."""
        self.waiting: deque[tuple[float, str, list[bytes]]] = deque()
        self.socket: Any = context.socket(zmq.ROUTER)
        self.socket.router_mandatory = True  # a connection that has gone is not let in
        self.socket.bind(_ZAP)

    def allow(self, key: str) -> None:
        """Lets the holder of that key speak."""
        self.allowed.add(key)
        for row in [one for one in self.waiting if one[1] == key]:
            self.waiting.remove(row)
            self._answer(row[2], key)

    def read(self) -> None:
        """A request: routing id, "", version, request id, domain, address, identity, mechanism,
        credentials. Raises zmq.Again where there is none."""
        request: list[bytes] = self.socket.recv_multipart(zmq.NOBLOCK)
        if len(request) != 9 or request[7] != b"CURVE" or len(request[8]) != 32:
            self._answer(request, "")
            return
        key = z85.encode(request[8]).decode()
        if key in self.allowed:
            self._answer(request, key)
        elif len(self.waiting) < MOST_WAITING:
            self.waiting.append((time.monotonic(), key, request))
        else:
            self._answer(request, "")

    def refused(self, now_s: float) -> Iterator[str]:
        """The addresses of those who have waited too long, and are refused."""
        while self.waiting and now_s - self.waiting[0][0] > HEAD_ANSWERS_S:
            _, _, request = self.waiting.popleft()
            self._answer(request, "")
            yield request[5].decode("ascii", "replace")[:64]

    def _answer(self, request: list[bytes], key: str) -> None:
        status = (b"200", b"OK") if key else (b"400", b"this key is none of this job's nodes")
        with contextlib.suppress(zmq.ZMQError, IndexError):
            self.socket.send_multipart([*request[:4], *status, key.encode(), b""], zmq.NOBLOCK)
            self.let_in += bool(key)
