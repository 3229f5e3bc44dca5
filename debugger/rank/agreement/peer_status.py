"""The status of another rank of this host right now: from its record, or its stack.

For the errors that a rank raises while the others still run; the report has its own ways.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ...record.layout import Activity, Phase
from ...record.reading.reader import FlightError, FlightReader
from ...record.requests import stack_dump
from ...record.snapshot import Process, Rank
from ...record.wording import at_site, call_text, numbered, printable
from ...system import proc

_MOST_NAMED = 8
_MOST_FRAMES = 6
_STACK_S, _STACKS_S = 2.0, 4.0
"""For one stack, and for all together: the other ranks wait a little longer for what is said."""


def doing(directory: Path, ranks: Sequence[int], job: str) -> str:
    """`; rank 3 is in all_gather(float32[4]) #7 of group "tp" at train.py:40 in step`, and so on
    for each; "" for ranks of which nothing is known here."""
    views = _views(directory, set(ranks), job)
    known = [rank for rank in ranks if rank in views][:_MOST_NAMED]
    until_s = time.monotonic() + _STACKS_S
    return "".join(f"; rank {rank} {_standing(directory, views[rank], until_s)}" for rank in known)


def _views(directory: Path, ranks: set[int], job: str) -> dict[int, Rank]:
    found: dict[int, Rank] = {}
    for path in (directory / "ranks").glob("*.flight"):
        with contextlib.suppress(FlightError, OSError, ValueError):
            reader = FlightReader(path)
            if reader.rank in ranks and reader.identity.get("job", "") == job:
                view = reader.view(Process(alive=proc.exists(reader.pid)))
                before = found.get(view.rank)
                if before is None or before.started_ns < view.started_ns:
                    found[view.rank] = view
    return found


def _standing(directory: Path, view: Rank, until_s: float) -> str:
    if not view.process.alive or view.phase is Phase.ENDED:
        return "has ended"
    paused = next((wait for wait in view.waits if wait.activity is Activity.PAUSED), None)
    if paused is not None:
        return f"is at a breakpoint{at_site(paused.site)}"
    for wait in view.waits:
        call = view.history.call(wait.call) if view.history and wait.call is not None else None
        if call is not None:
            group = view.groups.get(call.group)
            number = (
                f" {numbered(group, call.seq)}" if group and call.signature.peer is None else ""
            )
            return f"is in {call_text(call)}{number}{at_site(call.site or wait.site)}"
    for wait in view.waits:
        if wait.activity is not Activity.NONE:
            what = wait.activity.name.lower().replace("_", " ")
            return f"waits in {what}{at_site(wait.site)}"
    stack = _stack(directory, view.pid, min(_STACK_S, until_s - time.monotonic()))
    if stack:
        return f"is in no call; it is at {' < '.join(stack)}"
    return f"is in no call{at_site(view.location)}"


def _stack(directory: Path, pid: int, limit_s: float) -> list[str]:
    """Its main thread's stack, innermost frame first; empty where it does not answer."""
    text = stack_dump.ask(directory / "stacks", pid, limit_s)
    main = next((thread for thread in stack_dump.threads(text) if thread.main), None)
    return [
        printable(f"{os.path.basename(file)}:{line} in {name}")
        for file, line, name in (main.frames[:_MOST_FRAMES] if main else ())
    ]
