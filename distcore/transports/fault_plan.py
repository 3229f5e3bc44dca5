"""Which frames of which connections are to go wrong, and how: the plan of a run with faults.

The same plan and seed hit the same frames in every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Fault", "FaultPlan", "Injection", "Kind"]


class Kind(Enum):
    """What can happen to a frame."""

    DELAY = "delay"
    THROTTLE = "throttle"
    DROP = "drop"
    TRUNCATE = "truncate"
    DUPLICATE = "duplicate"
    CORRUPT = "corrupt"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to which frames.

    `kind`: DELAY: `delay_s` seconds pass before the frame, and all behind it, go on. THROTTLE: it
    goes at `bytes_per_s`. DROP: it is not sent. TRUNCATE: its first `keep_bytes` bytes (header
    included) are sent, then the sending side ends. DUPLICATE: it is sent twice. CORRUPT: one bit of
    its payload flips; nothing where the payload lies in shared memory, or there is none. RESET: the
    connection is reset before the frame.

    `rank`, `peer`: group ranks of the sender and the receiver; None: any. `lane`: the number of the
    connection between the two, as given to `faulty_connect`; None: any. `first_frame`, `frames`:
    the frames concerned, counted on that connection from 0, those that carry or offer data only;
    `frames=None`: all from `first_frame` on. `probability`: of each of them to be hit, drawn from
    the plan's seed.

    Raises ValueError and TypeError for what makes no sense.
    """

    kind: Kind
    rank: int | None = None
    peer: int | None = None
    lane: int | None = None
    first_frame: int = 0
    frames: int | None = 1
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

    def covers(self, frame: int) -> bool:
        """Whether the frame is one of its own, if the dice agree."""
        last = float("inf") if self.frames is None else self.first_frame + self.frames
        return self.first_frame <= frame < last


_NEEDED = {"delay_s": Kind.DELAY, "bytes_per_s": Kind.THROTTLE, "keep_bytes": Kind.TRUNCATE}


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault that happened: to which frame of which connection."""

    fault: Fault
    rank: int
    peer: int
    lane: int
    frame: int

    def __str__(self) -> str:
        return (
            f"{self.fault.kind.value} of frame {self.frame} from rank {self.rank} to rank "
            f"{self.peer} (lane {self.lane})"
        )


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of a run. `happened` is called with each as it is done, on whatever thread
    sends."""

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

    def for_frame(self, rank: int, peer: int, lane: int, frame: int) -> list[Fault]:
        """What happens to this frame."""
        return [
            fault
            for index, fault in enumerate(self.faults)
            if fault.concerns(rank, peer, lane)
            and fault.covers(frame)
            and self.dice(rank, peer, lane, frame, index).random() < fault.probability
        ]

    def dice(self, *place: object) -> random.Random:
        """Random numbers that depend on the seed and the place, and on nothing else."""
        return random.Random(f"{self.seed} {place}")
