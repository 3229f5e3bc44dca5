"""Asks the job's TCPStore for its keys, as one of its clients would; nothing is written.

torch's store answers, after four bytes that say what it is, a request for the list of its keys
(torch 2.11 and newer). It does not tell who waits for which: that is on the stacks. A rank that
comes into a gloo group sets a key with its number there, so the list also tells who has not come,
on whatever host he is.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..record.safe_text import clean
from .limits import REPLY_S

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


def keys_of(host: str, port: int, limit_s: float = REPLY_S) -> Keys | str:
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


def values_of(keys: Keys, names: Iterable[str], limit_s: float = REPLY_S) -> Mapping[str, str]:
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
    """The peer is no store that lists keys."""


class _Answer:
    """Reads numbers and texts as the store writes them: eight bytes, and as many more."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")
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
        data = self._file.read(count)
        if len(data) < count:
            raise _NoStoreError("it has closed the connection")
        return data
