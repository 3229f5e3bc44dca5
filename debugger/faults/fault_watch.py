"""Follows the run's faults: reads the plan and what the ranks say they did."""

from __future__ import annotations

import os
from pathlib import Path

from ..record.safe_files import open_regular
from . import plan
from .injected import FILE, Injected, entry
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
        self._read_bytes = 0

    def look(self) -> list[Injected]:
        """Returns what has happened since the last look. A program may have added to the plan,
        too."""
        self._read_plan()
        came = [one for one in map(entry, self._lines()) if one is not None]
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

    def _lines(self) -> list[bytes]:
        """Whole lines that are new."""
        try:
            with open(open_regular(self._directory / FILE), "rb") as file:
                file.seek(self._read_bytes)
                data = file.read(MOST_BYTES)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == MOST_BYTES:
            whole = MOST_BYTES  # no line of ours is that long
        self._read_bytes += whole
        return data[:whole].splitlines()
