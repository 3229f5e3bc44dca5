"""The faults that a run's plan names, for those who only list them, or ask for one by hand.

`faults.json` is there before the first rank starts, where there is a plan. Each line {"fault": N,
"time_ns": ...} of `inject-now.jsonl` asks for fault N now; the ranks that it names see it with
their next heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..wording import printable
from .run_directory import read_object

PLAN = "faults.json"
SCHEMA = "distdebug.faults/1"
ASKED = "inject-now.jsonl"


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`number`: its place in the plan; `text`: as the user wrote it, printable."""

    number: int
    text: str


def planned_faults(directory: Path) -> Sequence[PlannedFault]:
    """Returns the faults by number; none where the run has no plan, or one of another version."""
    plan = read_object(directory / PLAN)
    rows = plan.get("faults") if plan.get("schema") == SCHEMA else None
    found = {}
    for row in rows if isinstance(rows, list) else ():
        number = row.get("number") if isinstance(row, dict) else None
        if isinstance(number, int) and not isinstance(number, bool):
            found[number] = PlannedFault(number, printable(str(row.get("text", ""))))
    return [found[number] for number in sorted(found)]
