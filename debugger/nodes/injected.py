"""The faults that a node has injected, as the head needs them: its ranks' faults are in the run's
one report.

A node tells the faults of its plan by their text, for the head may have others, and in another
order: one that only this node's program asks for is added to the head's plan. What has happened is
added to the head's `injected.jsonl`, by the head's clock and the head's numbers, so that every
reader of its run directory sees the faults of all nodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..faults.injected import FILE, FaultWatch, entry
from ..faults.plan import Fault, add, load
from ..faults.spec import SpecError, parse
from ..record.safe_files import append
from .messages import Message

MOST_ROWS = 100_000
"""The most rows of one node."""
MOST_FAULTS = 10_000


def plan_message(directory: Path) -> Message:
    """The head's plan, for the ranks of other nodes."""
    try:
        found = load(directory)
    except (OSError, ValueError, KeyError, TypeError):
        found = None  # a program has written it; the report says so
    return Message("plan", {"faults": [one.text for one in found.faults] if found else []})


def take_plan(directory: Path, data: Mapping[str, Any]) -> None:
    """Adds, on a node, what its own plan has not. Raises ValueError, KeyError or TypeError for what
    makes no sense, and OSError."""
    texts = [str(text) for text in data["faults"]]
    if len(texts) > MOST_FAULTS:
        raise ValueError("the head reports more faults than a run has")
    if texts:
        add(directory, _parsed(texts))


def _parsed(texts: Iterable[str]) -> list[Fault]:
    """Raises ValueError."""
    try:
        return [parse(text) for text in texts]
    except SpecError as error:
        raise ValueError(f"another node's plan has a fault that is none: {error}") from None


class InjectedSource:
    """A node's side: what it has not told yet. Times go by its monotonic clock."""

    def __init__(self, directory: Path) -> None:
        self._watch = FaultWatch(directory)
        self._plan_told: list[list[Any]] = []
        self._rows_told = 0

    def anew(self) -> None:
        """Nothing counts as told. What the head has already, it knows by its number."""
        self._plan_told, self._rows_told = [], 0

    def next(self) -> Message | None:
        """Returns what has happened since the last call; None where nothing has."""
        self._watch.look()
        faults = self._watch.plan.faults if self._watch.plan is not None else ()
        plan = [[fault.number, fault.text] for fault in faults]
        rows = self._watch.entries[self._rows_told :]
        if plan == self._plan_told and not rows:
            return None
        add_ns = time.monotonic_ns() - time.time_ns()
        told = [asdict(one) | {"time_ns": one.time_ns + add_ns} for one in rows]
        message = Message("injected", {"plan": plan, "first": self._rows_told, "rows": told})
        self._plan_told, self._rows_told = plan, self._rows_told + len(rows)
        return message


@dataclass(slots=True)
class InjectedCopies:
    """The head's side, of one node; `directory` is the head's run directory."""

    directory: Path
    _numbers: dict[int, int] = field(default_factory=dict)
    _rows: int = 0

    def apply(self, data: Mapping[str, Any], offset_ns: int) -> None:
        """`offset_ns` added to the node's monotonic clock gives our Unix time. Raises ValueError,
        TypeError or KeyError for what makes no sense, and OSError."""
        plan, first, rows = data["plan"], data["first"], data["rows"]
        if len(plan) > MOST_FAULTS or self._rows + len(rows) > MOST_ROWS:
            raise ValueError("a node reports more faults than a run has")
        self._adopt({int(number): str(text) for number, text in plan})
        for row in rows[max(0, self._rows - int(first)) :]:
            self._rows += 1
            number = self._numbers.get(row["fault"])
            if number is None:
                raise ValueError("a node reports a fault that is in no plan")
            time_ns = int(row["time_ns"]) + offset_ns
            line = json.dumps({**row, "fault": number, "time_ns": time_ns}).encode()
            if entry(line) is None:
                raise ValueError("what a node reports of a fault cannot be read")
            append(self.directory / FILE, line + b"\n")

    def _adopt(self, texts: Mapping[int, str]) -> None:
        """Find our numbers of these faults; what our plan has not is added to it."""
        if not texts.keys() - self._numbers.keys():
            return
        ours = load(self.directory)
        known = {one.text for one in ours.faults} if ours is not None else set()
        new = _parsed(text for text in texts.values() if text not in known)
        whole = add(self.directory, new) if new or ours is None else ours
        numbers = {one.text: one.number for one in whole.faults}
        self._numbers = {number: numbers[text] for number, text in texts.items()}
