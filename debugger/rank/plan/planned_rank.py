"""A rank of a plan, as the scheduler of all knows it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...record.writing.program_writer import program_path
from .wire import Message, Unpacker, packed

_MOST_CHECKS = 50
"""The number of questions for keys that are not there, and for nothing else, after which a rank is
in a loop that waits for them: each further look is as a sleep."""

ASKS, JOINS, MOVES = "asks", "joins", "moves"
"""The main thread waits for an answer; it waits for threads that do; something may still happen."""

Request = tuple[list[Any], list[bytes | None]]


@dataclass(frozen=True, slots=True)
class ThreadsStanding:
    """The threads of a rank as they stand (see `standing_threads`). `doubtful`: one stands in code
    that is not known here; `site`: the line of the main thread that joins others; `slept`: the
    number of each thread, and how often it has slept so far."""

    word: str = MOVES
    doubtful: bool = False
    site: int = 0
    slept: Sequence[Sequence[int | None]] = ()


@dataclass(slots=True)
class PlannedRank:
    """A rank that has a process, or had one."""

    rank: int
    pid: int = 0
    connection: socket.socket | None = None
    unpacker: Unpacker = field(default_factory=Unpacker)
    requests: dict[int, Request] = field(default_factory=dict)
    """By number, the requests for which its threads wait; of a rank that was ended meanwhile, those
    of then."""
    of_others: set[int] = field(default_factory=set)
    """The numbers of those that are not its main thread's."""
    measure_at_s: float = 0.0
    began_s: float = 0.0
    cpu_ticks: int = -1
    slept_s: float = 0.0
    """Planned time, also by a run of it that was ended since; and what this run has asked for: the
    first so much of that is over for it already."""
    asked_s: float = 0.0
    limit_s: float = 0.0
    since_s: float = 0.0
    used_s: float = 0.0
    told_to_end_s: float = 0.0
    vain_checks: int = 0
    private_bytes: int = 0
    alone: bool = True
    """The thread that asked last is the only one of Python's."""
    stands: ThreadsStanding | None = None
    """Its last answer about its threads."""
    rests: bool = False
    """None of its threads can do anything before an answer comes."""
    runs: int = 0
    waited: int = 0

    @property
    def waits(self) -> bool:
        """Whether it waits for what others do, and does not just sleep."""
        return all(request[0][0] != "sleep" for request in self.requests.values())

    def looks_in_vain(self, words: Sequence[Any], answer: Message | None) -> bool:
        """Whether this is one more look of a loop that waits for keys."""
        if list(words[:2]) != ["store", "check"] or answer != ([False], []):
            self.vain_checks = 0
            return False
        self.vain_checks += 1
        return self.vain_checks > _MOST_CHECKS

    def say(self, number: int, answer: Message) -> None:
        """Answer the request with this number."""
        if self.connection is not None:
            with contextlib.suppress(OSError):  # it has ended, which is seen elsewhere
                self.connection.sendall(packed([number, *answer[0]], answer[1]))

    def kill(self) -> None:
        """End its process, and everything that it has started; somebody has yet to wait for it."""
        self.kill_started()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)

    def kill_started(self) -> None:
        """End what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def note(self, directory: Path, row: Sequence[Any]) -> None:
        """The last line of its program, which its process could not write."""
        path = program_path(directory, self.rank)
        with contextlib.suppress(OSError):  # else its program is read as one that breaks off
            whole = not path.exists() or path.read_bytes().endswith(b"\n")
            with path.open("ab") as file:
                file.write(b"" if whole else b"\n")
                file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def note_cut(self, directory: Path, why: str, stuck: bool) -> None:
        """Notes that nothing more is known of the rank. `stuck`: it waits for what never comes."""
        stands = (self.stands if stuck else None) or ThreadsStanding()
        self.note(directory, ["cut", why, stands.site, stuck, stands.word == JOINS])
