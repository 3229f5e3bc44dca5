"""A rank of a plan, as the scheduler of all knows it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .wire import Message, Unpacker

_MOST_CHECKS = 50
"""Who has asked so often for keys that are not there, and for nothing else, is in a loop that waits
for them: each further look is as a sleep."""

Request = tuple[list[Any], list[bytes | None]]


@dataclass(slots=True)
class Planned:
    """A rank that has a process, or had one."""

    rank: int
    pid: int = 0
    connection: socket.socket | None = None
    unpacker: Unpacker = field(default_factory=Unpacker)
    requests: dict[int, Request] = field(default_factory=dict)
    """What its threads wait for, by number; of one that was ended meanwhile, what they waited for
    then."""
    measure_at_s: float = 0.0
    began_s: float = 0.0
    cpu_ticks: int = -1
    slept_s: float = 0.0
    """Of planned time, also by a run of it that was ended since; and what this run has asked for:
    the first so much of that is over for it already."""
    asked_s: float = 0.0
    limit_s: float = 0.0
    since_s: float = 0.0
    used_s: float = 0.0
    told_to_end_s: float = 0.0
    vain_checks: int = 0
    private_bytes: int = 0
    runs: int = 0
    waited: int = 0

    def looks_in_vain(self, words: Sequence[Any], answer: Message | None) -> bool:
        """Whether this is one more look of a loop that waits for keys."""
        if list(words[:2]) != ["store", "check"] or answer != ([False], []):
            self.vain_checks = 0
            return False
        self.vain_checks += 1
        return self.vain_checks > _MOST_CHECKS
