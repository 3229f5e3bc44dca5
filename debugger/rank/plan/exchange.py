"""The values of this rank's calls: given to and taken from the other planned ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from distcore.plan.exchange import RATIO, packed

from ..torch_private.planning import store_name
from .origins import OWN, mixed
from .taint import Taint
from .wire import Message, PlannerLine

FEW_ELEMENTS = 16
"""The most floats that are taken for numbers that steer a program; more are data."""
MOST_OBJECT_BYTES = 64 << 20
"""Bytes are objects, which always travel, up to so many."""
_EXACT = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.bool})


class Planner:
    """This rank's line to who runs the plan. `before_wait` is called once, before it first
    waits."""

    def __init__(
        self,
        line: PlannerLine,
        before_wait: Callable[[], None] | None,
        found: Mapping[str, str],
    ) -> None:
        """`found`: what other ranks had for `recall` before this process began."""
        self._line = line
        self._before_wait = before_wait
        self._found = found
        self.kept: list[Any] = []
        """Objects that must live as long as the rank."""

    def tell(self, words: Sequence[Any], values: Sequence[bytes | None] = ()) -> None:
        """Say something that needs no answer."""
        self._line.tell(words, values)

    def ask(self, words: Sequence[Any], values: Sequence[bytes | None] = ()) -> Message:
        """Ask for something, and wait until it is there."""
        if self._before_wait is not None and words[0] not in ("agree", "recall"):  # wait for nobody
            first, self._before_wait = self._before_wait, None
            first()
        return self._line.ask(words, values)

    def recall(self, asked: str) -> str | None:
        """Returns a rank's result for this that is the same on all; None where none has it."""
        known = self._found.get(asked)
        if known is not None:
            return known
        found: str | None = self.ask(["recall", asked])[0][0]
        return found

    def remember(self, asked: str, found: str) -> None:
        """Spare the others that."""
        self.tell(["remember", asked, found])


class PlannedExchange:
    """A `distcore.plan.exchange.Exchange`. `real_bytes`: how much of a tensor of integers
    travels."""

    def __init__(
        self,
        planner: Planner,
        taint: Taint,
        real_bytes: int,
        came: Callable[[int], None],
        barriers_wait: bool,
        planned: Sequence[int],
    ) -> None:
        """`came` is told who sent what this thread has received from any source. `planned`: the
        ranks that are."""
        self.barriers_wait = barriers_wait
        self._planner = planner
        self._taint = taint
        self._real_bytes = real_bytes
        self._came = came
        self._planned = frozenset(planned)
        self._expected: dict[tuple[str, int, int, int], int] = {}

    def __repr__(self) -> str:
        return f"<PlannedExchange of up to {self._real_bytes} bytes>"

    def world(self, store: Any) -> str:
        return store_name(store)

    def absent(self, ranks: Sequence[int]) -> Sequence[int]:
        return [place for place, rank in enumerate(ranks) if rank not in self._planned]

    def lack(self, rank: int) -> None:
        self._planner.ask(["lack", rank])

    def is_small(self, tensor: Tensor) -> bool:
        if tensor.is_meta:
            return False
        dtype = tensor.dtype
        if dtype is torch.uint8:
            return tensor.nbytes <= max(MOST_OBJECT_BYTES, self._real_bytes)
        if dtype in _EXACT:
            return tensor.nbytes <= RATIO * self._real_bytes
        return tensor.numel() <= FEW_ELEMENTS and tensor.nbytes <= self._real_bytes

    def carried(self, tensor: Tensor, data: bytes) -> bytes | None:
        if len(data) <= self._real_bytes or tensor.dtype is torch.uint8:
            return data
        return packed(data, self._real_bytes)

    def is_real(self, tensor: Tensor) -> bool:
        return not self._taint.has(tensor)

    def mark(self, tensors: Sequence[Tensor], real: bool, alike: str = "") -> None:
        origin = mixed(alike) if alike else OWN
        for one in tensors:
            if real:
                self._taint.drop(one)
            else:
                self._taint.add(one, origin)

    def offer(self, slot: str, text: str, rank: int, parts: Sequence[bytes | None]) -> None:
        self._planner.tell(["offer", slot, text, rank], parts)

    def agreed(self, slot: str, text: str, value: bytes) -> bytes:
        return self._planner.ask(["agree", slot, text], [value])[1][0] or value

    def collect(
        self, slot: str, text: str, rank: int, sources: Sequence[int]
    ) -> list[bytes | None]:
        return self._planner.ask(["collect", slot, text, rank, list(sources)])[1]

    def send(self, channel: str, source: int, target: int, tag: int, value: bytes | None) -> None:
        self._planner.tell(["send", channel, source, target, tag], [value])

    def expect(self, channel: str, source: int, target: int, tag: int) -> int:
        self._planner.tell(["expect", channel, source, target, tag])
        key = (channel, source, target, tag)
        number = self._expected[key] = self._expected.get(key, 0) + 1
        return number

    def take(self, channel: str, source: int, target: int, tag: int, number: int) -> bytes | None:
        return self._planner.ask(["take", channel, source, target, tag, number])[1][0]

    def take_any(self, channel: str, target: int, tag: int) -> tuple[int, bytes | None]:
        words, values = self._planner.ask(["take_any", channel, target, tag])
        source = int(words[0])
        self._came(source)
        key = (channel, source, target, tag)
        self._expected[key] = self._expected.get(key, 0) + 1
        return source, values[0]
