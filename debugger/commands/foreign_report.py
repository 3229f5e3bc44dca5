"""The report of a job that was not started by us, from the dumps of torch's flight recorder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..diagnosis.findings import Finding
from ..errors import UsageError
from ..foreign import dump_files, flight_recorder, judging
from ..foreign.as_snapshot import as_snapshot, write_records
from ..foreign.judging import MESSAGES, OF_A_CALL, not_in_record
from ..foreign.trace import Trace, traced
from ..record.collection import no_collection
from ..record.safe_text import clean
from ..record.wording import RankState, ranks_text
from ..reports import document
from ..reports.stored import Document
from .rendering import scratch_run


@dataclass(frozen=True)
class JudgedDumps:
    """The newest job whose dumps lie there. `faults` are sentences about files that cannot be
    read; `taken_ns`: when the dumps were written, as far as that is known."""

    document: Document
    faults: Sequence[str]
    trace: Trace
    taken_ns: int = 0


@no_collection()
def judged(path: Path) -> JudgedDumps:
    """Judges the job. Raises UsageError where there is no dump at all, or none can be read: there
    is nothing then of which a report could say that it is in order."""
    found = dump_files.load(path)
    if not found.jobs and found.faults:
        raise UsageError("; ".join(found.faults))
    if not found.jobs:
        trace = traced({})
        return JudgedDumps(_built(path, trace, [], list(found.notes)), found.faults, trace)
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
    if not _errors(findings) and (if_still := _errors(judging.judge(trace))):
        notes.append(
            f"the newest call was {job.age_s or 0:.1f} s old when the dumps were written: of a job "
            "at work nothing is concluded. If it stands still all the same, "
            f"{if_still[0].message.removeprefix('suspected: ')}"
        )
    if trace.missing:
        notes.append(f"no dump of {ranks_text(trace.missing)}")
    if job.age_s is None and findings and not any(finding.proven for finding in findings):
        notes.append(
            "the files do not tell when they were written: a job at work looks like this, too, at "
            "one moment"
        )
    damaged = sum(dump.damaged for dump in job.dumps.values())
    if damaged:
        notes.append(f"{damaged} entries could not be read and are left out")
    taken_ns = job.newest_ns + int((job.age_s or 0) * 1e9)
    return JudgedDumps(_built(path, trace, findings, notes), found.faults, trace, taken_ns)


@contextlib.contextmanager
def as_run(path: Path) -> Iterator[Path]:
    """Writes the job as a run directory, with records and report, which is gone after the `with`.
    Raises UsageError where no dump can be read, or the directory not be written."""
    found = judged(path)
    if not found.trace.dumps:
        why = found.document["notes"]
        raise UsageError(why[0] if why else f"{path} holds no dump that can be read")
    command = ["dumps", "of", "torch's", "flight", "recorder:", clean(str(path))]
    report = {**found.document, "notes": [*found.document["notes"], *found.faults]}
    with scratch_run(command, report) as directory:
        try:
            write_records(as_snapshot(found.trace, found.taken_ns), directory.ranks)
        except OSError as error:
            why = f"{directory.path} cannot be written: {error.strerror}"
            raise UsageError(why) from error
        yield directory.path


def _source(trace: Trace) -> str:
    libraries = ", ".join(flight_recorder.libraries(trace.dumps.values())) or "no call"
    versions = ", ".join(sorted({dump.version for dump in trace.dumps.values()} - {""}))
    messages = ", messages" if MESSAGES in not_in_record(trace) else ""
    found = (entry.place for dump in trace.dumps.values() for entry in dump.entries)
    return (
        f"read from {len(trace.dumps)} flight recorder dumps ({libraries}; version "
        f"{clean(versions) or 'unknown'}); {', '.join(OF_A_CALL)} of a call{messages} and groups "
        "that never formed are not in this kind of record"
        f"{'' if any(found) else '; lines are not in this record'}"
    )


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [one for one in findings if one.severity == "error"]


def _built(path: Path, trace: Trace, findings: Sequence[Finding], notes: Sequence[str]) -> Document:
    verdict = next(iter(_errors(findings)), None)
    made = document.build(
        command=[],
        run_dir=path,
        world_size=trace.world_size,
        duration_s=0.0,
        outcome=verdict.kind if verdict else "ok",
        exit_code=verdict.exit_code if verdict else 0,
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
    state = RankState.WAITS_IN if pending else "was last in" if shown else "has nothing pending"
    return {
        "pid": 0,
        "host": "",
        "exit": {"code": None, "signal": None},
        "calls": len(entries),
        "state": state,
        "call": clean(str(shown.signature)) if shown else None,
        "call_is": "object",
        "location": document.location(shown.site) if shown else None,
    }
