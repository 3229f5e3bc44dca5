"""The plan of a run with faults: which frames of which connections are to go wrong, and how.

The same plan and seed hit the same frames in every run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    """The faults of a frame."""

    DELAY = "delay"
    THROTTLE = "throttle"
    DROP = "drop"
    TRUNCATE = "truncate"
    DUPLICATE = "duplicate"
    CORRUPT = "corrupt"
    RESET = "reset"
    BLACKHOLE = "blackhole"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and the frames that it concerns.

    `kind`: DELAY: `delay_s` seconds pass before the frame goes on, and what is behind it waits as
    well. THROTTLE: it goes at `bytes_per_s`. DROP: it is not sent. TRUNCATE: its first `keep_bytes`
    bytes (header included) are sent, then the sending side ends. DUPLICATE: it is sent twice.
    CORRUPT: one bit of its payload flips; nothing where the payload lies in shared memory, or there
    is none. RESET: the connection is reset before the frame. BLACKHOLE: neither the frame nor
    anything else goes out, nor is a connection made; all of it goes on, in order, once a frame
    comes that is not concerned, or the time is over.

    `rank`, `peer`: the sender and the receiver; None: any. `lane`: the number of the connection
    between the two; None: any. `first_frame`, `frames`, `stride`: the frames concerned, counted on
    that connection from 0, those that carry or offer data only: `frames` of them, each
    `stride`-th; `frames=None`: all from `first_frame` on. `at_s`, `for_s`: the time concerned, in
    seconds of the plan's clock; `for_s=None`: without end. Of its frames the first `frames` are
    hit, or all; a BLACKHOLE counts none. `probability`: of each frame to be hit, drawn from the
    plan's seed.

    Raises ValueError and TypeError for what makes no sense.
    """

    kind: Kind
    rank: int | None = None
    peer: int | None = None
    lane: int | None = None
    first_frame: int = 0
    frames: int | None = 1
    stride: int = 1
    at_s: float | None = None
    for_s: float | None = None
    probability: float = 1.0
    delay_s: float | None = None
    bytes_per_s: float | None = None
    keep_bytes: int | None = None

    def __post_init__(self) -> None:
        kind: Any = self.kind
        if not isinstance(kind, Kind):
            names = ", ".join(f"Kind.{one.name}" for one in Kind)
            raise TypeError(f"fault: kind: expected one of {names}, given {kind!r}")
        for name in ("rank", "peer", "lane", "first_frame"):
            self._check_whole(name, least=0, optional=name != "first_frame")
        self._check_whole("frames", least=1, optional=True)
        self._check_whole("stride", least=1, optional=False)
        self._check_time()
        probability: Any = self.probability
        if not isinstance(probability, float | int) or not 0 < probability <= 1:
            self._wrong("probability", "more than 0 and at most 1")
        if self.rank is not None and self.rank == self.peer:
            self._wrong("peer", f"another rank than `rank`, which is {self.rank}")
        for name, needed_by in _NEEDED.items():
            given = getattr(self, name)
            if (given is not None) != (self.kind is needed_by):
                what = f"a number for {needed_by.value}, and None for every other kind"
                self._wrong(name, what)
        self._check_whole("keep_bytes", least=0, optional=True)
        for name in ("delay_s", "bytes_per_s"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, float | int) or not given > 0):
                self._wrong(name, "a number above 0")

    def _check_time(self) -> None:
        at_s: Any = self.at_s
        for_s: Any = self.for_s
        if at_s is None:
            if for_s is not None:
                self._wrong("for_s", "None where there is no `at_s`")
            return
        if not isinstance(at_s, float | int) or not at_s >= 0:
            self._wrong("at_s", "a number of seconds, 0 or more, or None")
        if for_s is not None and (not isinstance(for_s, float | int) or not for_s > 0):
            self._wrong("for_s", "a number above 0 or None")
        if self.first_frame or self.stride != 1:
            self._wrong("first_frame" if self.first_frame else "stride", "none beside `at_s`")
        if self.kind is Kind.BLACKHOLE and self.frames is not None:
            self._wrong("frames", "None beside `at_s`")

    def _check_whole(self, name: str, least: int, optional: bool) -> None:
        given = getattr(self, name)
        if given is None and optional:
            return
        if not isinstance(given, int) or isinstance(given, bool) or given < least:
            self._wrong(name, f"a whole number of at least {least}{' or None' * optional}")

    def _wrong(self, name: str, expected: str) -> None:
        given = getattr(self, name)
        raise ValueError(f"fault {self.kind.value}: {name}: expected {expected}, given {given!r}")

    def concerns(self, rank: int, peer: int, lane: int) -> bool:
        """Whether it is one of this connection's."""
        return self.rank in (None, rank) and self.peer in (None, peer) and self.lane in (None, lane)

    def covers(self, frame: int, clock_s: float = 0.0, hits: int = 0) -> bool:
        """Whether the frame is one of its own, if the dice agree; it is sent at that time, and
        `hits` others were hit before."""
        if self.at_s is not None:
            return self.is_on(clock_s) and (self.frames is None or hits < self.frames)
        index, offset = divmod(frame - self.first_frame, self.stride)
        return index >= 0 and not offset and (self.frames is None or index < self.frames)

    def is_on(self, clock_s: float) -> bool:
        """Whether this time is one of its own."""
        return self.at_s is not None and self.at_s <= clock_s < self.ends_s

    @property
    def is_timed_hole(self) -> bool:
        """Whether it swallows all that is sent at its time, whatever frame that is."""
        return self.kind is Kind.BLACKHOLE and self.at_s is not None

    @property
    def ends_s(self) -> float:
        """When its time is over, by the plan's clock."""
        if self.at_s is None or self.for_s is None:
            return float("inf")
        return self.at_s + self.for_s


_NEEDED = {"delay_s": Kind.DELAY, "bytes_per_s": Kind.THROTTLE, "keep_bytes": Kind.TRUNCATE}


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that happened: to which frame of which connection of which group. `frame=None`: to a
    connection that was to be made."""

    fault: Fault
    rank: int
    peer: int
    lane: int
    frame: int | None
    group: str = ""

    def __str__(self) -> str:
        what = "a new connection" if self.frame is None else f"frame {self.frame}"
        return (
            f"{self.fault.kind.value} of {what} from rank {self.rank} to rank "
            f"{self.peer} (lane {self.lane})"
        )


class FaultClock:
    """The time that a plan's faults go by: seconds since it began, minus infinity before that."""

    def __init__(self, began: float = float("inf")) -> None:
        self.began = began
        """By time.monotonic()."""

    def begin(self) -> None:
        """Makes now time 0, unless that was before."""
        self.began = min(self.began, time.monotonic())

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of a run. `happened` is called with each just before it is done, on whatever
    thread sends."""

    faults: tuple[Fault, ...]
    seed: int = 0
    happened: Callable[[Injection], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        given: Any = self.faults
        if not isinstance(given, tuple) or not all(isinstance(one, Fault) for one in given):
            raise TypeError(f"fault plan: faults: expected a tuple of Fault, given {given!r}")
        seed: Any = self.seed
        if not isinstance(seed, int):
            raise TypeError(f"fault plan: seed: expected an int, given {seed!r}")

    def concerns(self, rank: int, peer: int, lane: int) -> bool:
        """Whether anything happens to this connection."""
        return any(fault.concerns(rank, peer, lane) for fault in self.faults)

    def concerns_group(self, ranks: Sequence[int]) -> bool:
        """Whether anything may happen on a connection between two of these."""
        members = {None, *ranks}
        return any(fault.rank in members and fault.peer in members for fault in self.faults)

    def holes(self, rank: int, peer: int, lane: int, clock_s: float) -> list[Fault]:
        """The black holes that lie between the two at this time."""
        return [
            fault
            for fault in self.faults
            if fault.is_timed_hole and fault.concerns(rank, peer, lane) and fault.is_on(clock_s)
        ]

    def dice(self, *place: object) -> random.Random:
        """Random numbers that depend on the seed and the place, and on nothing else."""
        return random.Random(f"{self.seed} {place}")
