"""A network of its own beside a group of any backend, on which its ranks compare notes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from ..algorithms import collectives
from ..base.buffers import bytes_of, tensor_over
from ..base.deadline import Deadline
from ..base.reduction import reduction_for
from ..engine import process_exit
from ..engine.call_queue import CallQueue
from ..transports.base import Transport
from ..transports.matching import Posting
from .engine import connect

_MASK = (1 << 64) - 1
_SUM = reduction_for(ReduceOp.SUM, torch.int64)
_TWO = struct.Struct("<2Q")
NOTE_BYTES = 1022
_LENGTH = struct.Struct("<H")


class SideChannel:
    """Made by all ranks of a group, on the store that the group was made on.

    The constructor blocks until all have come; RendezvousError when they do not within `timeout_s`.
    `ranks` are global ranks by group rank, which errors speak of.

    Who calls `agree` or `gather` must have the turn (`turn.enter` and `turn.leave`, or be a job of
    `turn.submit`). Like a group's, the calls are made by all ranks, in one order. They raise
    PeerLost, DeadlineExceeded (which names who does not answer, where it can) or another
    GroupFailed; then every rank gets one, and the channel cannot be used any more.
    """

    def __init__(
        self, store: Any, name: str, ranks: Sequence[int], rank: int, timeout_s: float
    ) -> None:
        # A group on our own backend may have the same name in the same store. Memory that ranks of
        # one host share would be wasted on some bytes.
        self._session = connect(
            store, f"beside {name}", ranks, rank, timeout_s, share_memory=False, aside=True
        )
        self.turn: CallQueue = self._session.queue
        self._size = len(ranks)
        self._weight = _weights(len(ranks))[rank]
        self._sums = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._bytes = bytes_of(self._sums)
        process_exit.watch_beside(self)

    @property
    def failure(self) -> BaseException | None:
        """The first error, which made the channel unusable."""
        return self._session.failure

    def agree(self, value: int, share: int, timeout_s: float) -> bool:
        """Whether all ranks give the same `value` (64 bits; the hash of something) and their
        shares (64 bits) add up to 0 mod 2**64: the same answer on every rank.

        One all_reduce of 16 bytes: each rank's value is multiplied by a weight of its own, and the
        weights add up to 0. So the sum is 0 where the values are equal; where they are not, and are
        hashes, it is 0 once in 2**63.
        """
        _TWO.pack_into(self._bytes, 0, value * self._weight & _MASK, share & _MASK)
        self._session.run(
            "agree()", timeout_s, lambda net: collectives.all_reduce(net, self._sums, _SUM)
        )
        return not any(_TWO.unpack_from(self._bytes))

    def gather(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Returns what each rank gives, by group rank, on every rank; not more than fits into
        memory."""
        lengths = torch.zeros(self._size, dtype=torch.int64, device="cpu")
        parts: list[torch.Tensor] = []

        def exchange(net: Transport) -> None:
            collectives.all_gather(
                net,
                [lengths[place : place + 1] for place in range(self._size)],
                torch.tensor([len(data)], device="cpu"),
            )
            parts.extend(
                torch.empty(length, dtype=torch.uint8, device="cpu") for length in lengths.tolist()
            )
            own = tensor_over(memoryview(bytearray(data)), torch.uint8)
            collectives.all_gather(net, parts, own)

        self._session.run("gather()", timeout_s, exchange)
        return [bytes(bytes_of(part)) for part in parts]

    def post_note(self, peer: int, lane: int, note: bytes, timeout_s: float) -> None:
        """Send up to NOTE_BYTES to a group rank, and do not wait. Notes of one lane arrive in
        order."""
        data = bytearray(_LENGTH.size + NOTE_BYTES)
        _LENGTH.pack_into(data, 0, len(note))
        data[_LENGTH.size : _LENGTH.size + len(note)] = note
        mailbox = self._session.mailbox()
        mailbox.post_send(peer, lane, memoryview(data), Deadline.after(timeout_s))

    def await_note(self, peer: int, lane: int, timeout_s: float) -> SideNote:
        """The next note of that group rank on that lane."""
        data = bytearray(_LENGTH.size + NOTE_BYTES)
        mailbox = self._session.mailbox()
        until = Deadline.after(timeout_s)
        return SideNote(mailbox.post_receive(peer, lane, memoryview(data), until), data)

    def abort(self, reason: str) -> None:
        """End what runs, and the channel, on all ranks. From any thread."""
        self._session.abort(reason)

    def close(self) -> None:
        """Leave; peers that need nothing from this rank any more go on."""
        self._session.close()


class SideNote:
    """A note of a peer's, here or on its way."""

    def __init__(self, posting: Posting, data: bytearray) -> None:
        self._posting = posting
        self._data = data

    @property
    def over(self) -> bool:
        """Whether it is here, or will never be."""
        return self._posting.done

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call `tell()` when it is here, or will never be: at once, or on the channel's thread."""
        self._posting.when_over(tell)

    def read(self) -> bytes:
        """Wait for it. Raises PeerLost, DeadlineExceeded or another GroupFailed."""
        self._posting.wait()
        length = _LENGTH.unpack_from(self._data)[0]
        return bytes(self._data[_LENGTH.size : _LENGTH.size + length])


def _weights(size: int) -> list[int]:
    """Returns a weight for each rank, all but the last odd, adding up to 0 mod 2**64; the same
    everywhere."""
    numbers = random.Random(size)  # against coincidence, not against an attacker
    drawn = [numbers.getrandbits(64) | 1 for _ in range(size - 1)]
    return [*drawn, -sum(drawn) & _MASK]
