"""monitored_barrier on every backend: through the store, and with what the missing ranks do.

torch has it for gloo alone, where the ranks that came blame the first one for another's absence.
What a missing rank does right now is read from its record, or its stack: the error is raised while
the others still run; the report has its own ways.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from distcore.errors import BarrierFailed
from distcore.groups.monitored_barrier import monitored_barrier

from ...record.layout import Activity, Phase
from ...record.reading.reader import FlightError, FlightReader
from ...record.requests import stack_dump
from ...record.snapshot import Process, Rank
from ...record.wording import RankState, at_site, call_text, numbered, printable
from ...system import proc
from ..record.recorder import GroupRecord, OwnFinding, Recorder
from ..torch_private.probe import dist


def monitor(
    recorder: Recorder, record: GroupRecord, store: Any, namesakes: str
) -> Callable[..., None]:
    """Returns the monitored_barrier of one group, on one rank. `namesakes`: of `recorder`, when
    the group was made."""
    name = f"distdebug/monitored/{record.name}/{namesakes}"
    own_store: Any = dist.PrefixStore(name, store)
    numbers = itertools.count()

    def barrier(timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return when all ranks have called it. Raises BarrierFailed on all of them otherwise: it
        says what each missing rank does instead."""
        limit_s = record.timeout_s if timeout is None else timeout.total_seconds()
        directory: Path = recorder.writer.path.parent.parent
        seq = record.slot.issued - 1
        try:
            monitored_barrier(
                *(own_store, record.ranks, record.group_rank, next(numbers)),
                *(limit_s, wait_all_ranks, partial(_doing, directory, recorder.job)),
            )
        except BarrierFailed as failed:
            # What the report says, if nobody catches the error.
            failed.finding = OwnFinding(record, seq, "missing_rank", failed.reason, failed.missing)
            raise

    return barrier


_MOST_NAMED = 8
_MOST_FRAMES = 6
_STACK_S, _STACKS_S = 2.0, 4.0
"""For one stack, and for all together: the other ranks wait a little longer for what is said."""


def _doing(directory: Path, job: str, ranks: Sequence[int]) -> str:
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
        return RankState.GONE
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
    # Its main thread's stack, innermost frame first; empty where it does not answer.
    limit_s = min(_STACK_S, until_s - time.monotonic())
    threads = stack_dump.threads(stack_dump.ask(directory / "stacks", view.pid, limit_s))
    main = next((thread for thread in threads if thread.main), None)
    stack = [
        printable(f"{os.path.basename(file)}:{line} in {name}")
        for file, line, name in (main.frames[:_MOST_FRAMES] if main else ())
    ]
    if stack:
        return f"is in no call; it is at {' < '.join(stack)}"
    return f"is in no call{at_site(view.location)}"
