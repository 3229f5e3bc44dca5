"""The frames on a connection: a fixed header, the call's text where a message begins, the payload.

Integers are little-endian. Lengths are checked before anything is done with them; a header that
makes no sense ends the connection. Nothing on the wire is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import dataclass
from struct import Struct

from .. import errors

MAGIC = 0xDC02
HEADER = Struct("<HBBHHIIIQQQQI")
"""magic, kind, flags, text bytes, slot, group, step, checksum, seq, fingerprint, total, offset,
length: 56 bytes."""

DATA, FAIL, CREDIT, BYE, WAITS = 1, 2, 3, 4, 5
FIRST, IN_MEMORY, CHECKED, IN_PLACE = 1, 2, 4, 8
"""Flags of a data frame: it begins a message and the call's text follows; its payload lies in
shared memory, in the given slot; its checksum was computed, and where its payload follows, its
slot is its number on this connection (`next_order`); the whole message lies in the sender's own
memory, its offset is the address, and the sender waits for the answer."""
READ, UNREADABLE = 0xFFFE, 0xFFFF
"""Slots of a credit that answer such a frame: the message was read, or cannot be."""

FRAME_BYTES = 1024 * 1024
"""The most payload of one frame; a whole number of segments."""
TEXT_BYTES = 512
FAIL_BYTES = 8192
_MOST_NAMED = 500
"""Ranks in a frame of `FAIL_BYTES`."""


class BadFrame(Exception):
    """The peer does not speak this protocol, or the line garbled it."""


class Closed(Exception):
    """The connection is over; `orderly` when the peer closed it gracefully."""

    def __init__(self, reason: str, orderly: bool) -> None:
        super().__init__(reason)
        self.orderly = orderly

    @classmethod
    def by(cls, error: OSError) -> Closed:
        """Ended by the system's error."""
        return cls(f"is not reachable any more ({error.strerror or error})", orderly=False)


class GaveUp(Exception):
    """A peer's time has run out; it waits for these ranks of the group."""

    def __init__(self, awaited: tuple[int, ...]) -> None:
        super().__init__(awaited)
        self.awaited = awaited


def send_some(connection: socket.socket, unsent: list[memoryview]) -> bool:
    """Sends what the socket takes of these, and removes it; whether it took any. Raises Closed."""
    try:
        sent = connection.sendmsg(unsent)
    except BlockingIOError:
        return False
    except OSError as error:
        raise Closed.by(error) from None
    while sent:
        first = unsent[0]
        if sent < len(first):
            unsent[0] = first[sent:]
            break
        sent -= len(first)
        unsent.pop(0)
    return True


@dataclass(frozen=True, slots=True)
class FramedCall:
    """The call that a group is in, as its messages carry it."""

    group: int
    seq: int
    text: bytes
    fingerprint: int

    def __str__(self) -> str:
        text = self.text.rstrip(b"\0").decode("utf-8", "replace")
        return f"{text} #{self.seq}"


def next_order(order: int) -> int:
    """The number of the data frame behind that one."""
    return (order + 1) & 0xFFFF


def digest32(name: str) -> int:
    """A group's number on the wire."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


def fingerprint(text: bytes) -> int:
    """64 bits that stand for a call's text."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def wire_text(text: str) -> bytes:
    """The call's text as it travels: cut at `TEXT_BYTES`, padded so that payloads are aligned."""
    raw = text.encode("utf-8", "replace")[:TEXT_BYTES]
    return raw + b"\0" * (-len(raw) % 8)


def control(kind: int, slot: int = 0, payload: bytes = b"") -> bytes:
    """A frame that is no part of a message."""
    return HEADER.pack(MAGIC, kind, 0, 0, slot, 0, 0, 0, 0, 0, 0, 0, len(payload)) + payload


def waits(awaited: tuple[int, ...]) -> bytes:
    """The frame that says whom this rank waits for, and that it does so no longer."""
    return control(WAITS, payload=json.dumps(awaited[:_MOST_NAMED]).encode())


def waits_from(payload: bytes) -> GaveUp:
    """Reads what a peer says that it waits for."""
    try:
        awaited = json.loads(payload)
        if not all(type(rank) is int for rank in awaited):
            raise TypeError(awaited)
    except (ValueError, TypeError) as error:
        raise BadFrame(f"an unreadable list of ranks: {error!r}") from None
    return GaveUp(tuple(awaited))


def failure(error: errors.GroupFailed) -> bytes:
    """The frame that passes an error on."""
    kind = type(error).__name__ if type(error) in errors.KINDS.values() else "GroupFailed"
    message = str(error).encode("utf-8", "replace")[: FAIL_BYTES - 512].decode("utf-8", "replace")
    content = {"kind": kind, "culprit": error.culprit, "link": error.link, "message": message}
    text = json.dumps(content)
    return control(FAIL, payload=text.encode())


def failure_from(payload: bytes, teller: int) -> errors.GroupFailed:
    """The error that a peer (a global rank) passes on."""
    try:
        content = json.loads(payload)
        cls = errors.KINDS[content["kind"]]
        message, culprit = str(content["message"]), content["culprit"]
        if culprit is not None and not isinstance(culprit, int):
            raise TypeError(culprit)
        link = content["link"]
        if link is not None:
            sender, receiver = link
            if not (isinstance(sender, int) and isinstance(receiver, int)):
                raise TypeError(link)
            link = (sender, receiver)
    except (ValueError, KeyError, TypeError) as error:
        raise BadFrame(f"an unreadable failure: {error!r}") from None
    told_by = f" (told by rank {teller})"
    return cls(message if "(told by rank" in message else message + told_by, culprit, link)
