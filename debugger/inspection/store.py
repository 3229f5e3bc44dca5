"""Which keys the job's TCPStore has, asked of it as one of its clients would; nothing is written.
And what the debug servers of the ranks answer, whose addresses are there.

torch's store answers, after four bytes that say what it is, a request for the list of its keys
(torch 2.11 and newer). It does not tell who waits for which: that is on the stacks. A rank that
comes into a gloo group sets a key with its number there, so the list also tells who has not come,
on whatever host he is.

A program that has called `start_debug_server()` (`torch.distributed.debug`) has an HTTP server in
each rank, whose address is a key of the job's store. It is asked for the rank's flight recorder.
The answer is made by a C++ thread: a rank that hangs, or holds its GIL, gives it as well.
"""

from __future__ import annotations

import re
import socket
import struct
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ..foreign.flight_recorder import Dump, NoDump, read
from ..record.safe_text import clean

LIMIT_S = 3.0
"""So long it may take to answer: it is a thread of a rank on a host that may be crowded."""
_MAGIC = 0x3C85F7CE
_VALIDATE, _GET, _LIST_KEYS = b"\x00", b"\x03", b"\x11"
_MOST_BYTES = 1 << 24
_MOST_KEYS = 1 << 18
_MOST_TEXT = 512
_OF_GLOO = re.compile(
    r"default_pg/0//(?:(?P<group>.+?)//)?(?:cpu|cuda|[a-z]+)//\d+/(?P<rank>\d{1,7})$"
)
_ATTEMPT = re.compile(r"/attempt_(\d{1,7})/")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a store at `address`. `refused`: nobody listens there."""

    address: str
    names: Sequence[str] = field(default_factory=tuple)
    refused: bool = False

    def has(self, key: str) -> bool:
        """Whether somebody has set it: what a program calls a key is the end of its name here."""
        return any(name == key or name.endswith(f"/{key}") for name in self.names)

    def came(self) -> Mapping[str, frozenset[int]]:
        """By group ("" is the default one): which of its members, as they are numbered there, have
        come to make it, in the newest attempt of torchrun's."""
        found: dict[str, set[int]] = {}
        attempts = [int(match[1]) for name in self.names if (match := _ATTEMPT.search(name))]
        for name in self.names:
            match = _OF_GLOO.search(name)
            attempt = _ATTEMPT.search(name)
            if match is not None and (attempt is None or int(attempt[1]) == max(attempts)):
                found.setdefault(match["group"] or "", set()).add(int(match["rank"]))
        return {group: frozenset(ranks) for group, ranks in found.items()}


def keys_of(host: str, port: int, limit_s: float = LIMIT_S) -> Keys | str:
    """The keys of the store there, or why they cannot be had."""
    address = f"{host}:{port}"
    try:
        with _connected(host, port, limit_s) as connection:
            connection.sendall(_LIST_KEYS)
            answer = _Answer(connection)
            names = [answer.text() for _ in range(answer.number(_MOST_KEYS))]
    except ConnectionRefusedError:
        return Keys(address, refused=True)
    except _NoStoreError as error:
        return f"what listens at {address} does not list its keys: {error}"
    except OSError as error:
        return f"the job's store at {address} does not answer: {clean(str(error), 200)}"
    return Keys(address, names)


def values_of(keys: Keys, names: Iterable[str], limit_s: float = LIMIT_S) -> Mapping[str, str]:
    """The texts that some of these keys have; empty where the store does not tell. Keys that are
    not there are not asked for: a store may make them."""
    host, _, port = keys.address.rpartition(":")
    found: dict[str, str] = {}
    try:
        with _connected(host, int(port), limit_s) as connection:
            for name in set(names) & set(keys.names):
                key = name.encode()
                connection.sendall(_GET + struct.pack("=Q", len(key)) + key)
                found[name] = _Answer(connection).text()
    except (_NoStoreError, OSError):
        pass
    return found


def _connected(host: str, port: int, limit_s: float) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=limit_s)
    connection.settimeout(limit_s)
    connection.sendall(_VALIDATE + struct.pack("=I", _MAGIC))
    return connection


class _NoStoreError(Exception):
    """It is no store that lists keys."""


class _Answer:
    """Reads numbers and texts as the store writes them: eight bytes, and as many more."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = _MOST_BYTES

    def number(self, most: int) -> int:
        value = int(struct.unpack("=Q", self._bytes(8))[0])
        if value > most:
            raise _NoStoreError(f"it announces {value}")
        return value

    def text(self) -> str:
        data = self._bytes(self.number(self._left))
        return clean(data.decode("utf-8", "replace"), _MOST_TEXT)

    def _bytes(self, count: int) -> bytes:
        self._left -= count
        if self._left < 0:
            raise _NoStoreError(f"its answer is longer than {_MOST_BYTES} bytes")
        parts = []
        while count:
            part = self._connection.recv(min(count, 1 << 16))
            if not part:
                raise _NoStoreError("it has closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


_KEY = re.compile(r"(?:^|/)debug_server/rank(\d{1,6})$")
_HANDLER = "/handler/fr_trace_json?includestacktraces=false"
_ADDRESS = re.compile(r"http://[\w.\-\[\]:]{1,250}:\d{1,5}/?$")
_LIMIT_S = 5.0
_MOST_DUMP_BYTES = 1 << 26
_WORKERS = 16


def dumps_of(keys: Keys) -> tuple[Mapping[int, Dump], list[str]]:
    """What the recorders of the ranks hold, by rank, and sentences about those that do not tell."""
    names = {name: int(match[1]) for name in keys.names if (match := _KEY.search(name))}
    addresses = {names[name]: text for name, text in values_of(keys, names).items()}
    if not addresses:
        return {}, []
    with ThreadPoolExecutor(min(_WORKERS, len(addresses)), "distdebug-dumps") as pool:
        answers = dict(zip(addresses, pool.map(_asked, addresses.values()), strict=True))
    found = {rank: answer for rank, answer in answers.items() if isinstance(answer, Dump)}
    return found, [
        f"the debug server of rank {rank} at {clean(addresses[rank], 120)} {answer}"
        for rank, answer in sorted(answers.items())
        if isinstance(answer, str)
    ]


def _asked(address: str) -> Dump | str:
    """A rank's dump, or what is wrong with it. The address is whatever somebody put into the store:
    nothing but plain HTTP is spoken, and no redirect followed."""
    if not _ADDRESS.match(address):
        return "has an address that is none"
    url = address.rstrip("/") + _HANDLER
    request = urllib.request.Request(url, data=b"", method="POST")  # noqa: S310  # see _ADDRESS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(request, timeout=_LIMIT_S) as answer:
            data = answer.read(_MOST_DUMP_BYTES + 1)
    except (OSError, ValueError) as error:
        return f"does not answer: {clean(str(error), 200)}"
    if len(data) > _MOST_DUMP_BYTES:
        return f"answers with more than {_MOST_DUMP_BYTES} bytes"
    try:
        return read(data)
    except NoDump as error:
        return f"has given what {error}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """None is followed: urllib then raises the answer as an error."""
