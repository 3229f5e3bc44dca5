"""Judges what the dumps of a job prove, and what they only suggest: they are judged as a snapshot,
by the rules of every other.

A disagreement on a call is proven, and that lines part (a warning) is read from stacks. All else is
suspected: a record has no clock that says "now", and of a job at work nothing is concluded. What
the record cannot hold (reduce op, root, splits, tag) is named in each finding.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from ..diagnosis.diagnose import diagnose
from ..diagnosis.findings import Finding, RankEvidence
from ..diagnosis.limits import Limits
from ..record.kinds import Family
from .as_snapshot import GLOO, as_snapshot
from .flight_recorder import Entry, libraries
from .limits import AT_WORK_S
from .trace import Trace

OF_A_CALL = ("reduce_op", "root", "splits", "tag")
UNFORMED_GROUPS = "unformed_groups"
MESSAGES = "messages"


def judge(trace: Trace, age_s: float | None = None) -> list[Finding]:
    """The findings, the verdict first. `age_s`: how old the newest call was when the dumps were
    written, where that is known: of a job at work nothing is concluded but what is proven."""
    newest_ns = max((dump.newest_ns for dump in trace.dumps.values()), default=0)
    limits = Limits(hang_timeout_s=AT_WORK_S)
    snapshot = as_snapshot(trace, newest_ns + int((age_s or 0) * 1e9))
    found = [
        one
        for one in diagnose(snapshot, None, limits).findings
        if one.severity == "error" or one.kind == "misaligned"
    ]
    if age_s is not None and _is_at_work(trace, age_s):
        found = [one for one in found if one.about.family is Family.MISMATCH]
    lacks = not_in_record(trace)
    return [
        replace(
            one,
            not_in_record=lacks,
            ranks={rank: _with_stack(trace, rank, row) for rank, row in one.ranks.items()},
        )
        for one in found
    ]


def not_in_record(trace: Trace) -> tuple[str, ...]:
    """Names what torch's flight recorder never holds, and what gloo's does not: nothing is
    guessed."""
    of_gloo = GLOO in libraries(trace.dumps.values())
    return (*OF_A_CALL, UNFORMED_GROUPS, *([MESSAGES] if of_gloo else []))


def _with_stack(trace: Trace, rank: int, row: RankEvidence) -> RankEvidence:
    """The evidence, with the stack that the recorder took at this call."""
    if row.location is None:
        return row
    entries = reversed(trace.dumps[rank].entries)
    return replace(row, stack=next((one.stack for one in entries if one.site == row.location), ()))


def _is_at_work(trace: Trace, age_s: float) -> bool:
    pending = list(_pending(trace))
    return not any(one.timed_out for one in pending) and age_s < _at_work_s(trace, pending)


def _pending(trace: Trace) -> Iterator[Entry]:
    """The oldest call that is not complete of each rank, and of each in each group."""
    for rank in trace.dumps:
        if (front := trace.first_pending(rank)) is not None:
            yield front
    for group in trace.groups:
        for calls in group.calls.values():
            if calls.first_pending is not None:
                yield calls.first_pending


def _at_work_s(trace: Trace, pending: list[Entry]) -> float:
    """Returns how old the newest call of this job may be while it is at work."""
    usual_ns = 0
    for dump in trace.dumps.values():
        made = sorted(entry.created_ns for entry in dump.entries)
        pauses = (later - one for one, later in pairwise(made))
        took = (one.completed_ns - one.created_ns for one in dump.entries if one.completed_ns)
        for many in (heapq.nlargest(2, pauses), heapq.nlargest(2, took)):
            if len(many) == 2:  # one alone is a start, or a checkpoint
                usual_ns = max(usual_ns, many[1])
    usual_s = min(2 * usual_ns / 1e9, 60.0)
    if not any(dump.tells_of_all for dump in trace.dumps.values()):
        usual_s = max(usual_s, 20.0)  # nothing tells how long the job is without a call
    allowed = (one.timeout_ms / 1e3 for one in pending if one.timeout_ms)
    return max(AT_WORK_S, min([usual_s, *allowed]))
