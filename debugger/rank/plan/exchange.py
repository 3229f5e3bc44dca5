"""The values of this rank's calls, and its store: given to and taken from the other planned ranks.

A rank that waits for a key gives its place to another. No time passes in a plan: a wait for a key
that nobody will set any more is over when nothing else can go on.

On the wire between a planned rank and the process that runs it is a line of JSON, and bytes with
it. Both ends are one program's; nothing is ever unpickled.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from distcore.plan.exchange import RATIO, packed

from ..torch_private.planning import store_name
from ..torch_private.probe import dist
from .taint import OWN, Taint, mixed

TIMED_OUT = "timed out"
"""The first word of the answer to a wait for a key whose time is over."""
FEW_ELEMENTS = 16
"""The most floats that are taken for numbers that steer a program; more are data."""
MOST_OBJECT_BYTES = 64 << 20
"""Bytes are objects, which always travel, up to so many."""
_EXACT = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.bool})


_HEAD = struct.Struct("<I")
CHUNK = 1 << 18

LOOK = -2
"""The number of a question to the rank: see `Planner.stands`."""

Message = tuple[list[Any], list[bytes | None]]
"""The words, and values that are no JSON; None: one that is not known."""


def as_bytes(words: Sequence[Any], values: Sequence[bytes | None] = ()) -> bytes:
    """Returns a message as bytes."""
    sizes = [-1 if one is None else len(one) for one in values]
    head = json.dumps([list(words), sizes], separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(len(head)), head, *(one for one in values if one)])


class Unpacker:
    """Gives whole messages out of bytes that come in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with this."""
        self._bytes += data
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> Message | None:
        held = self._bytes
        if len(held) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(held)
        start = _HEAD.size + length
        if len(held) < start:
            return None
        words, sizes = json.loads(bytes(held[_HEAD.size : start]))
        end = start + sum(size for size in sizes if size > 0)
        if len(held) < end:
            return None
        values: list[bytes | None] = []
        at = start
        for size in sizes:
            if size < 0:
                values.append(None)
                continue
            values.append(bytes(held[at : at + size]))
            at += size
        del held[:end]
        return words, values


class Planner:
    """This rank's line to who runs the plan. `ask` waits for the answer; any thread may, while
    others do. `before_wait` is called once, before it first waits. `stands` says where the threads
    of this rank stand, and is asked in one of them that waits."""

    def __init__(self, connection: socket.socket, found: Mapping[str, str]) -> None:
        """`found`: what other ranks had for `recall` before this process began."""
        self._connection = connection
        self._unpacker = Unpacker()
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._answers: dict[int, Message] = {}
        self._numbers = itertools.count()
        self._somebody_reads = False
        self._ended = False
        self.stands: Callable[[], Sequence[Any]] | None = None
        self.before_wait: Callable[[], None] | None = None
        self._found = found
        self.kept: list[Any] = []
        """Objects that must live as long as the rank."""

    def tell(self, words: Sequence[Any], values: Sequence[bytes | None] = ()) -> None:
        """Say something that needs no answer."""
        with self._sending:
            self._connection.sendall(as_bytes([-1, *words], values))

    def ask(self, words: Sequence[Any], values: Sequence[bytes | None] = ()) -> Message:
        """Say something, and wait for the answer. Raises ConnectionError when nobody is there."""
        if self.before_wait is not None and words[0] not in ("agree", "recall"):  # wait for nobody
            first, self.before_wait = self.before_wait, None
            first()
        number = next(self._numbers)
        alone = threading.active_count() == 1
        is_main = alone or threading.current_thread() is threading.main_thread()
        with self._sending:
            self._connection.sendall(as_bytes([number, alone, is_main, *words], values))
        while True:
            with self._changed:
                while number not in self._answers and self._somebody_reads:
                    self._changed.wait()
                if number in self._answers:
                    return self._answers.pop(number)
                if self._ended:
                    raise ConnectionError("the process that runs the plan has gone")
                self._somebody_reads = True
            self._read()

    def _read(self) -> None:
        """Reads what is said to this rank, for whichever of its threads, up to the next answer."""
        answered = False
        while not answered:
            data = b""
            said: list[Message] = []
            try:
                data = self._connection.recv(CHUNK)
                said = list(self._unpacker.feed(data))
            finally:
                answers = {words[0]: (words[1:], values) for words, values in said}
                looks = answers.pop(LOOK, None)
                answered = bool(answers) or not data
                if answered:  # else no thread is woken, for it is asked whether any of them moves
                    with self._changed:
                        self._answers |= answers
                        self._somebody_reads = False
                        self._ended = not data
                        self._changed.notify_all()
            if looks is not None:
                self.tell(["stands", *(self.stands() if self.stands is not None else ())])

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


@dataclass(eq=False)
class PlannedExchange:
    """A `distcore.plan.exchange.Exchange`. `real_bytes`: how much of a tensor of integers travels.
    `came` is told who sent what this thread has received from any source. `planned`: the ranks that
    are."""

    _planner: Planner
    _taint: Taint
    _real_bytes: int
    _came: Callable[[int], None]
    barriers_wait: bool
    _planned: frozenset[int]
    _expected: dict[tuple[str, int, int, int], int] = field(default_factory=dict)

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


DEFAULT_TIMEOUT = timedelta(seconds=300)


class PlannedStore(dist.Store):  # type: ignore[misc]
    """`address` tells the stores of one plan apart."""

    def __init__(self, planner: Planner, address: str) -> None:
        super().__init__()
        self._planner = planner
        self.address = address
        self._timeout = DEFAULT_TIMEOUT
        planner.kept.append(self)  # C++ finds nothing of it once Python has dropped its object

    def __repr__(self) -> str:
        return f"<PlannedStore {self.address!r}>"

    def _key(self, key: Any) -> str:
        text = key.decode("latin-1") if isinstance(key, bytes) else str(key)
        return f"{self.address}/{text}"

    def _ask(
        self,
        words: Sequence[Any],
        values: Sequence[bytes] = (),
        timeout: timedelta | None = None,
    ) -> tuple[list[Any], list[bytes]]:
        limit_s = (timeout or self._timeout).total_seconds()
        answer, found = self._planner.ask(["store", *words], list(values))
        if answer[:1] == [TIMED_OUT]:
            raise dist.DistStoreError(
                f"wait timeout after {limit_s * 1000:.0f}ms, keys: {words[1:]}"
            )
        return answer, [one or b"" for one in found]

    def set(self, key: Any, value: Any) -> None:
        self._ask(["set", self._key(key)], [_bytes(value)])

    def get(self, key: Any) -> bytes:
        self._planner.tell(["limit", self._timeout.total_seconds()])
        return self._ask(["get", self._key(key)])[1][0]

    def add(self, key: Any, amount: int) -> int:
        return int(self._ask(["add", self._key(key), int(amount)])[0][0])

    def check(self, keys: Sequence[Any]) -> bool:
        return bool(self._ask(["check", *map(self._key, keys)])[0][0])

    def wait(self, keys: Sequence[Any], timeout: timedelta | None = None) -> None:
        limit_s = (timeout or self._timeout).total_seconds()
        self._planner.tell(["limit", limit_s])
        self._ask(["wait", *map(self._key, keys)], (), timeout)

    def compare_set(self, key: Any, expected: Any, desired: Any) -> bytes:
        values = [_bytes(expected), _bytes(desired)]
        return self._ask(["compare_set", self._key(key)], values)[1][0]

    def delete_key(self, key: Any) -> bool:
        return bool(self._ask(["delete", self._key(key)])[0][0])

    deleteKey = delete_key  # what C++ asks for, for a store around this one

    def num_keys(self) -> int:
        return int(self._ask(["count"])[0][0])

    getNumKeys = num_keys

    def append(self, key: Any, value: Any) -> None:
        self._ask(["append", self._key(key)], [_bytes(value)])

    def multi_get(self, keys: Sequence[Any]) -> list[bytes]:
        self._planner.tell(["limit", self._timeout.total_seconds()])
        return self._ask(["get", *map(self._key, keys)])[1]

    def multi_set(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def queue_push(self, key: Any, value: Any) -> None:
        self._ask(["push", self._key(key)], [_bytes(value)])

    def queue_pop(self, key: Any, block: bool = True) -> bytes:
        del block
        return self._ask(["pop", self._key(key)])[1][0]

    def queue_len(self, key: Any) -> int:
        return int(self._ask(["queue_length", self._key(key)])[0][0])

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def clone(self) -> PlannedStore:
        """Another object for the same keys."""
        twin = type(self)(self._planner, self.address)
        twin._timeout = self._timeout
        return twin


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value)
