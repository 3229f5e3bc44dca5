"""The report of a job that was not started by us, from the dumps of torch's flight recorder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..foreign import dump_files, flight_recorder, judging
from ..foreign.evidence import NOT_IN_RECORD
from ..foreign.trace import Trace, traced
from ..record.sanitize import clean
from ..record.wording import ranks_text
from ..reports import document
from ..reports.stored import Document


def report(path: Path) -> tuple[Document, Sequence[str]]:
    """The report document of the newest job whose dumps lie there, and sentences about files that
    cannot be read. Raises UsageError where there is no dump at all."""
    found = dump_files.load(path)
    if not found.jobs:
        return _built(path, traced({}), [], list(found.notes)), found.faults
    job, *others = found.jobs
    trace = traced(job.dumps)
    findings = judging.judge(trace, job.age_s)
    notes = [_source(trace), *found.notes]
    if others:
        places = ", ".join(clean(other.place) for other in others[:3])
        notes.append(
            f"dumps of {len(found.jobs)} jobs lie here; this is the newest, {clean(job.place)}*. "
            f"The others are {places}{', ...' if len(others) > 3 else ''}: put each in a folder of "
            "its own to have it judged"
        )
    if trace.missing:
        notes.append(f"no dump of {ranks_text(trace.missing)}")
    damaged = sum(dump.damaged for dump in job.dumps.values())
    if damaged:
        notes.append(f"{damaged} entries could not be read and are left out")
    return _built(path, trace, findings, notes), found.faults


def _source(trace: Trace) -> str:
    libraries = ", ".join(flight_recorder.libraries(trace.dumps.values())) or "no call"
    versions = ", ".join(sorted({dump.version for dump in trace.dumps.values()} - {""}))
    return (
        f"read from {len(trace.dumps)} flight recorder dumps ({libraries}; version "
        f"{clean(versions) or 'unknown'}); {', '.join(NOT_IN_RECORD)} of a call are not in "
        "this kind of record"
    )


def _built(path: Path, trace: Trace, findings: Sequence[Any], notes: Sequence[str]) -> Document:
    made = document.build(
        command=[],
        run_dir=path,
        world_size=trace.world_size,
        duration_s=0.0,
        outcome=findings[0].kind if findings else "ok",
        exit_code=findings[0].exit_code if findings else 0,
        findings=[(finding, None) for finding in findings],
        ranks={},
        notes=notes,
    )
    made["ranks"] = {str(rank): _rank(trace, rank) for rank in sorted(trace.dumps)}
    made["source"] = "flight_recorder"
    return made


def _rank(trace: Trace, rank: int) -> Document:
    entries = trace.dumps[rank].entries
    pending = trace.first_pending(rank)
    shown = pending or (entries[-1] if entries else None)
    state = "waits in" if pending else "was last in" if shown else "has nothing pending"
    return {
        "pid": 0,
        "host": "",
        "exit": {"code": None, "signal": None},
        "calls": len(entries),
        "state": state,
        "call": clean(str(shown.signature)) if shown else None,
        "location": document.location(shown.site) if shown else None,
    }
