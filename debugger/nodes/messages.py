"""The messages between supervisors: a kind, one JSON object, and bytes. Nothing is unpickled.

    node -> head     hello, pong, digest, injected, ended, stacks, stops, prompt, request,
                     reply, interrupted, files, watch, bye
    head -> node     welcome, refused, ping, pace, tell, anew, plan, verdict, stacks, fill, request,
                     reply, stops, prompt, view, report, stop, end; hello: say once more who you are

Sizes are checked before anything is parsed: ZeroMQ drops a connection that sends more than
`MOST_BYTES` in one part, and a JSON object that would take much memory is none. Changes of files
are patches: which file, where, what; packed, bounded, checked.

What one end has received and its supervisor has not taken in yet is bounded. A head that takes
stacks, or gets a twentieth of a core, reads slower than its nodes tell. Two bounds keep that from
filling its memory, and neither loses anything. A node stops telling while so many of its messages
are on the way (`many_nodes.Pace.ahead`): pings say how many of them were taken in (`Intake`), and
what changes meanwhile goes into one digest later, since digests are differences from what was told
last. Where a node does not keep to that, the link's thread stops reading at `MOST_UNREAD_BYTES`;
the rest waits in the sockets, and then on the nodes.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct, error
from typing import Any, NamedTuple

from ..record.safe_files import object_of
from ..record.safe_text import clean

MOST_BYTES = 16 << 20
"""The most bytes of one part of a message."""
MOST_JSON_COST_BYTES = 160 << 20
_MOST_KIND_BYTES = 32
_JSON = json.JSONEncoder(separators=(",", ":"), default=str)


class MessageError(ValueError):
    """These bytes are no message of ours."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message between supervisors. `blob` is what JSON is too dear for."""

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    blob: bytes = b""

    def parts(self) -> list[bytes]:
        """Returns the frames of the message, as they are sent."""
        text = _JSON.encode(self.data).encode()
        return [self.kind.encode(), text, self.blob] if self.blob else [self.kind.encode(), text]


def message_of(parts: Sequence[bytes]) -> Message:
    """Raises MessageError."""
    if len(parts) not in (2, 3) or len(parts[0]) > _MOST_KIND_BYTES:
        raise MessageError("it is no message of distdebug")
    kind = parts[0].decode("ascii", "replace")
    if not parts[1].lstrip().startswith(b"{"):
        raise MessageError(f"a message {kind!r} has no JSON object")
    data = object_of(parts[1], MOST_JSON_COST_BYTES)
    if not data and parts[1] != b"{}":
        raise MessageError(f"the JSON object of a message {kind!r} cannot be read")
    return Message(kind, data, parts[2] if len(parts) == 3 else b"")


class Requests:
    """The requests of this end to others, which any thread may make. Each has a number by which its
    answer is known, which the supervisor's loop takes in."""

    def __init__(self) -> None:
        self._asked = 0
        self._answers: dict[int, tuple[bool, str]] = {}

    def ask(
        self,
        send: Callable[[Message], None],
        request: Mapping[str, Any],
        timeout_s: float,
        whom: str,
        gone: Callable[[], str],
    ) -> str:
        """Returns the answer. Raises ValueError with a refusal, where none comes, and with what
        `gone` says when nobody is left to answer."""
        self._asked += 1
        number, until_s = self._asked, time.monotonic() + timeout_s
        send(Message("request", {"number": number, "request": dict(request)}))
        while number not in self._answers:
            if why := gone():
                raise ValueError(why)
            if time.monotonic() > until_s:
                raise ValueError(f"{whom} has not answered within {timeout_s:.0f} s")
            time.sleep(0.02)
        ok, text = self._answers.pop(number)
        if not ok:
            raise ValueError(text)
        return text

    def answered(self, data: Mapping[str, Any]) -> None:
        """Takes an answer. Raises KeyError for what makes no sense."""
        number, ok, text = data["number"], data["ok"], data["text"]
        if type(number) is int and 0 < number <= self._asked:
            self._answers[number] = ok is True, clean(str(text), 4000)


Act = Callable[[Mapping[str, Any]], str]
"""Does what was asked, and says so. Raises ValueError, which is a refusal."""


def answer(act: Act, data: Mapping[str, Any], reply: Callable[[Message], None]) -> None:
    """Does what the other end asks, in a thread of its own, since it may take a while, and replies.
    Raises ValueError, TypeError or KeyError for what makes no sense."""
    number, request = int(data["number"]), dict(data["request"])

    def run() -> None:
        try:
            ok, text = True, act(request)
        except ValueError as refusal:
            ok, text = False, str(refusal)
        except Exception as error:  # the other end waits for an answer
            ok, text = False, f"{type(error).__name__}: {error}"
        reply(Message("reply", {"number": number, "ok": ok, "text": text}))

    threading.Thread(target=run, name="distdebug-request", daemon=True).start()


MOST_UNREAD_BYTES = 32 << 20
_EACH_BYTES = 1000
"""The size of any message, as objects."""
_TIMES_JSON = 4
"""The size of a JSON object that was read, as a multiple of its text."""


@dataclass(slots=True)
class Intake:
    """The intake of one connection of a node: how many of its messages were taken in, by the
    supervisor's loop, and refused, in the link's thread. One that comes again has another."""

    taken: int = 0
    refused: int = 0

    @property
    def total(self) -> int:
        return self.taken + self.refused


def size_of(parts: list[bytes]) -> int:
    """Returns what a message takes in memory, roughly."""
    return _EACH_BYTES + _TIMES_JSON * sum(map(len, parts[:2])) + sum(map(len, parts[2:]))


class Inbox:
    """The queue of messages. One thread puts, another one takes; each count is written by one of
    them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Message, Intake, int]] = deque()
        self._put_bytes = self._taken_bytes = 0
        self._full = False

    def put(self, number: int, message: Message, intake: Intake, size_bytes: int) -> None:
        """A message of the node with that number."""
        self._put_bytes += size_bytes
        self._waiting.append((number, message, intake, size_bytes))

    def taken(self) -> Iterator[tuple[int, Message]]:
        """Yields what has come until now, each as it is asked for."""
        for _ in range(len(self._waiting)):
            number, message, intake, size_bytes = self._waiting.popleft()
            self._taken_bytes += size_bytes
            intake.taken += 1
            yield number, message

    @property
    def full(self) -> bool:
        """Whether no more is to be put, until half of it was taken. Asked by the thread that
        puts."""
        unread_bytes = self._put_bytes - self._taken_bytes
        self._full = unread_bytes >= MOST_UNREAD_BYTES // (2 if self._full else 1)
        return self._full


_HEAD = Struct("<III")
"""number of the file, offset, length"""
MOST_UNPACKED_BYTES = 64 << 20
MOST_PART_BYTES = 4 << 20
"""The most bytes in one message: on a slow network a greater one would take longer to arrive than a
node may be silent."""
_PACK_FROM_BYTES = 512


class Patch(NamedTuple):
    """`data` stands at `offset` of the node's `file`-th file."""

    file: int
    offset: int
    data: bytes


class PatchError(ValueError):
    """These bytes are no patches."""


def packed(patches: Iterable[Patch]) -> bytes:
    """Packs all patches behind one byte that says how."""
    plain = b"".join(
        part
        for one in patches
        for part in (_HEAD.pack(one.file, one.offset, len(one.data)), one.data)
    )
    if len(plain) < _PACK_FROM_BYTES:
        return b"\0" + plain if plain else b""
    return b"\1" + zlib.compress(plain, 1)


def bounded(patches: Iterable[Patch]) -> list[list[Patch]]:
    """The same in order, in parts that can be sent: at least one, be it empty."""
    parts: list[list[Patch]] = [[]]
    size = 0
    for one in patches:
        if parts[-1] and size + len(one.data) > MOST_PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += _HEAD.size + len(one.data)
    return parts


def inflated(packed: bytes) -> bytes:
    """Raises PatchError for what cannot be unpacked, or unpacks to more than anybody sends."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(packed, MOST_UNPACKED_BYTES)
    except zlib.error as fault:
        raise PatchError(f"it cannot be unpacked: {fault}") from None
    if inflater.unconsumed_tail:
        raise PatchError(f"it is more than {MOST_UNPACKED_BYTES >> 20} MiB")
    return plain


def unpacked(blob: bytes) -> Iterator[Patch]:
    """Raises PatchError, before anything is yielded that could be wrong in itself."""
    if not blob:
        return
    plain = blob[1:]
    if blob[:1] == b"\1":
        plain = inflated(plain)
    elif blob[:1] != b"\0":
        raise PatchError("patches of an unknown form")
    at = 0
    found = []
    while at < len(plain):
        try:
            file, offset, length = _HEAD.unpack_from(plain, at)
        except error:
            raise PatchError("patches that end in the middle") from None
        at += _HEAD.size
        if at + length > len(plain):
            raise PatchError("patches that end in the middle")
        found.append(Patch(file, offset, plain[at : at + length]))
        at += length
    yield from found
