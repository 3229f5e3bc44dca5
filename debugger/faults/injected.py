"""The faults of a plan that have happened: one line of `injected.jsonl` each, written just before
it happens.

The line is there, whole, when the process dies of what it announces. Who follows a run reads them,
and its plan, again and again (`FaultWatch`).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..record.reading.plain_data import WRONG, made_of
from ..record.safe_files import AddedLines, append, object_of
from . import plan
from .plan import Plan

MOST_BYTES = 1 << 22
"""Read at once; the rest comes with the next look."""


class FaultWatch:
    """Looks into a run directory again and again. `plan` is None where there is none, or none that
    this version can read; `entries` is all that has been read so far."""

    def __init__(self, directory: Path) -> None:
        self.plan: Plan | None = None
        self.entries: list[Injected] = []
        self._directory = directory
        self._plan_mark: tuple[int, int] | None = None
        self._lines = AddedLines(directory / FILE, MOST_BYTES)

    def look(self) -> list[Injected]:
        """Returns what has happened since the last look. A program may have added to the plan,
        too."""
        self._read_plan()
        came = [one for one in map(entry, self._lines.new()) if one is not None]
        self.entries += came
        return came

    def text_of(self, number: int) -> str:
        """The fault with this number, as its user wrote it."""
        faults = self.plan.faults if self.plan is not None else ()
        found = next((fault.text for fault in faults if fault.number == number), None)
        return found if found is not None else f"fault {number}"

    def _read_plan(self) -> None:
        try:
            state = os.stat(self._directory / plan.FILE)
        except OSError:
            return
        mark = (state.st_mtime_ns, state.st_ino)
        if mark == self._plan_mark:
            return
        self._plan_mark = mark
        try:
            self.plan = plan.load(self._directory) or self.plan
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError):
            pass  # the one that was there before still holds


FILE = "injected.jsonl"
MOST_TEXT = 4096
"""The longest text of a line."""
MOST_LINES = 100
"""The most lines of one fault in one rank: one that happens at every call fills no disk."""


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was made to happen.

    `fault`: its number in the plan. `rank`: the global rank, `pid` its process. `time_ns`: wall
    clock. `where`: at which call, step, frame or time, in words (`all_reduce(sum, float32[4]) #5
    of "default_pg"`). `file`, `line`: the user's own, where there is one. `refused`: one sentence,
    where it cannot happen in this run at all; the supervisor ends the run with it.
    """

    fault: int
    rank: int
    pid: int
    time_ns: int
    where: str
    group: str = ""
    seq: int | None = None
    file: str = ""
    line: int = 0
    refused: str = ""


class InjectedLog:
    """The writing side, one for each rank. A disk that is full costs the line, not the fault."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._path = directory / FILE
        self._rank = rank
        self._lines: dict[int, int] = {}

    def add(self, fault: int, where: str, **more: Any) -> None:
        """Fault number `fault` happens now. `more`: fields of `Injected`."""
        count = self._lines[fault] = self._lines.get(fault, 0) + 1
        if count > MOST_LINES:
            return
        entry = Injected(fault, self._rank, os.getpid(), time.time_ns(), where, **more)
        try:
            append(self._path, json.dumps(asdict(entry)).encode() + b"\n")
        except OSError:
            pass

    def refuse(self, fault: int, sentence: str) -> None:
        """Fault number `fault` cannot happen here; `sentence` says why, and the next step."""
        self.add(fault, "", refused=sentence)


def entry(line: bytes) -> Injected | None:
    """Reads one line; None for what is no such line."""
    try:
        return made_of(Injected, object_of(line), MOST_TEXT)
    except WRONG:
        return None
