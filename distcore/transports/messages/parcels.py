"""The two ends of a point-to-point connection: from the rank that dialled, messages; back to it,
leave to send the long ones.

A short message travels at once. A long one is offered, and sent when its receive has been posted,
straight into that receive's memory: a rank never holds more of what nobody asked for than the short
messages. Either is over when its receive has taken it (`ACCEPT`, or `REFUSE` where they do not
match), so a send without a receive waits, whatever its size: a program does not depend on it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol

from ...errors import GroupFailed
from ..frames import HEADER, TEXT_BYTES, BadFrame, failure
from .parcel_stream import (
    ACCEPT,
    BODY,
    EAGER,
    EAGER_BYTES,
    FAILED,
    OFFER,
    REFUSE,
    WITHDRAW,
    Frame,
    ParcelStream,
)

__all__ = ["EAGER_BYTES", "Parcel", "Receiver", "ReceiverEvents", "Sender", "SenderEvents"]


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message that arrived, or is offered (`body` is None): the sender's number for it, its tag
    and text, its length."""

    number: int
    tag: int
    text: str
    total: int
    body: bytes | None

    def __str__(self) -> str:
        tag = self.tag if self.tag < 2**63 else self.tag - 2**64
        return f"message {self.number} ({self.text or f'{self.total} bytes'}, tag={tag})"


class SenderEvents(Protocol):
    """The events of a sender; `peer` is the rank at the other end."""

    def accepted(self, peer: int, number: int) -> None:
        """A short message was taken, or a long one may be sent."""

    def refused(self, peer: int, number: int, text: str) -> None:
        """The message does not match the receive `text`."""

    def takes_no_more(self, peer: int, payload: bytes) -> None:
        """The peer's mailbox has failed (see `frames.failure_from`)."""


class ReceiverEvents(Protocol):
    """The events of a receiver; `peer` is the rank at the other end."""

    def arrived(self, peer: int, parcel: Parcel) -> None:
        """A message is here, or is offered."""

    def completed(self, peer: int, number: int) -> None:
        """A long message is in its place."""

    def withdrawn(self, peer: int, number: int) -> None:
        """The message is not sent, or not to its end."""

    def sends_no_more(self, peer: int, payload: bytes) -> None:
        """The peer's mailbox has failed (see `frames.failure_from`)."""


class Sender(ParcelStream):
    """The dialling end: sends messages, is told which long ones may go."""

    taken = frozenset((ACCEPT, REFUSE, FAILED))

    def __init__(
        self, connection: socket.socket, checked: bool, peer: int, events: SenderEvents
    ) -> None:
        super().__init__(connection, checked)
        self._peer = peer
        self._events = events

    def eager(self, number: int, tag: int, text: bytes, data: memoryview) -> None:
        """Queue a short message."""
        size = len(data)
        self.add(Frame(EAGER, number, tag, text, size, 0, size), bytes(data))

    def offer(self, number: int, tag: int, text: bytes, total: int) -> None:
        """Queue the offer of a long one."""
        self.add(Frame(OFFER, number, tag, text, total))

    def take_back(self, number: int) -> None:
        """Withdraws a message; its memory is not read any more."""
        self.withdraw(number)
        self.add(Frame(WITHDRAW, number))

    def tell(self, error: GroupFailed) -> None:
        """Queue this mailbox's last words."""
        _tell(self, error)

    def took(self, frame: Frame, payload: bytes) -> None:
        if frame.kind == ACCEPT:
            self._events.accepted(self._peer, frame.number)
        elif frame.kind == REFUSE:
            self._events.refused(self._peer, frame.number, frame.text.decode("utf-8", "replace"))
        else:
            self.abandon()
            self._events.takes_no_more(self._peer, payload)

    def named(self, frame: Frame) -> str:
        return f"the answer to message {frame.number}"


@dataclass(slots=True)
class _Target:
    parcel: Parcel
    rest: memoryview


class Receiver(ParcelStream):
    """The accepting end: hands over parcels; long ones go where `accept` says."""

    taken = frozenset((EAGER, OFFER, BODY, WITHDRAW, FAILED))

    def __init__(
        self, connection: socket.socket, checked: bool, peer: int, events: ReceiverEvents
    ) -> None:
        super().__init__(connection, checked)
        self._peer = peer
        self._events = events
        self._targets: dict[int, _Target] = {}

    def accept(self, parcel: Parcel, into: memoryview | None) -> None:
        """Tell the sender that its message was taken, or, with `into`, let it send what it
        offered. Raises Ended."""
        if into is not None:
            self._targets[parcel.number] = _Target(parcel, into)
        self.add(Frame(ACCEPT, parcel.number))
        self.push()

    def refuse(self, number: int, text: str) -> None:
        """Tell the sender that its message does not match the receive `text`. Raises Ended."""
        self.add(Frame(REFUSE, number, 0, text.encode()[:TEXT_BYTES]))
        self.push()

    def tell(self, error: GroupFailed) -> None:
        """Queue this mailbox's last words."""
        _tell(self, error)

    def received_bytes(self, number: int) -> int:
        """Returns how much has come of a long message that was accepted."""
        target = self._targets[number]
        received = target.parcel.total - len(target.rest)
        if self._into is not None and self._piece.number == number:
            received += self._piece.length - len(self._into)
        return received

    def discard(self, number: int) -> None:
        """Discards what still comes of this long message: its receive's memory is not written any
        more."""
        target = self._targets[number]
        if self._into is not None and self._piece.number == number:
            self._into = memoryview(bytearray(len(self._into)))
        target.rest = memoryview(bytearray(len(target.rest)))

    def took(self, frame: Frame, payload: bytes) -> None:
        if frame.kind == FAILED:
            self._events.sends_no_more(self._peer, payload)
        elif frame.kind == WITHDRAW:
            self._targets.pop(frame.number, None)
            self._events.withdrawn(self._peer, frame.number)
        else:
            body = payload if frame.kind == EAGER else None
            if frame.offset or (body is not None and len(body) != frame.total):
                raise BadFrame(f"a short message of {frame.length} bytes")
            self._events.arrived(self._peer, _parcel(frame, body))

    def room_for(self, frame: Frame) -> memoryview:
        target = self._targets.get(frame.number)
        if target is None or not frame.length or frame.length > len(target.rest):
            raise BadFrame(f"{frame.length} bytes of message {frame.number}, which nobody accepted")
        if frame.offset != target.parcel.total - len(target.rest):
            raise BadFrame(f"{target.parcel} goes on at byte {frame.offset}")
        return target.rest[: frame.length]

    def filled(self, frame: Frame) -> None:
        target = self._targets[frame.number]
        target.rest = target.rest[frame.length :]
        if not len(target.rest):
            del self._targets[frame.number]
            self._events.completed(self._peer, frame.number)

    def named(self, frame: Frame) -> str:
        target = self._targets.get(frame.number)
        return str(target.parcel if target is not None else _parcel(frame, None))


def _parcel(frame: Frame, body: bytes | None) -> Parcel:
    text = frame.text.decode("utf-8", "replace")
    return Parcel(frame.number, frame.tag, text, frame.total, body)


def _tell(stream: ParcelStream, error: GroupFailed) -> None:
    payload = failure(error)[HEADER.size :]
    stream.add(Frame(FAILED, 0, length=len(payload)), payload)
