"""Concludes a plan: its programs are judged, and what they came to is put into the run directory as
a run would have left it: a flight record for each rank, and the report in all its forms."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..diagnosis.facts.blocking import Model
from ..diagnosis.findings import Finding
from ..diagnosis.story import step
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import clean
from ..record.snapshot import Rank
from ..record.wording import printable, ranks_text
from ..record.writing.whole_records import write_whole
from ..reports import document, junit, text
from ..reports.stored import Document
from .classes import classes
from .judgement import Judgement, judge_programs
from .limits import MOST_READ
from .program import Program
from .schedules import Schedule

EXIT_FAILED = 1
_OF_GPUS = re.compile("cuda|nvidia", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The way in which the ranks were planned. `command`: as it was typed; `of`: the ranks of the
    whole job; `strict`: a warning fails the plan, too; `accelerator`: what answered calls for
    `cuda`, if not torch ("none")."""

    command: Sequence[str]
    of: int
    cores: int
    seconds: float
    steps: int = 0
    strict: bool = False
    accelerator: str = "none"
    notes: Sequence[str] = ()


Settle = Callable[[Document, Sequence[tuple[Finding, float | None]], Mapping[int, Rank]], int]
"""Adds what became of injected faults to a report; returns its exit code."""


def conclude(
    directory: RunDirectory,
    programs: Mapping[int, Program],
    model: Model,
    facts: PlanFacts,
    settle: Settle | None = None,
    schedule: Schedule | None = None,
) -> Document:
    """Judge the programs, and write the report and the records into the run directory.
    `schedule`: their orders, where these were looked at; in one of which ranks may be stuck."""
    # What was injected into the ranks happened before, so that it may explain what is found.
    judgement = schedule.judgement if schedule is not None else None
    judgement = judgement or judge_programs(programs, model, time.time_ns())
    findings = [_with_last_words(one, directory) for one in judgement.findings]
    judgement = replace(judgement, findings=findings)
    for number, rank in judgement.outcome.now.ranks.items():
        try:
            identity = {"argv": list(facts.command)}
            write_whole(directory.flight(number), rank, identity, len(programs))
        except OSError as error:
            directory.failures.append(f"cannot write the record of rank {number}: {error}")
            break
    report = _report(directory, programs, judgement, facts)
    if schedule is not None:
        report["plan"]["orders"] = {
            "total": schedule.count.total,
            "stuck": schedule.count.stuck,
            "exact": schedule.count.exact and not schedule.depends,
            "planned": schedule.planned,
            "depends": schedule.depends,
            "faults": list(schedule.faults),
        }
    if settle is not None:
        timed = [(finding, None) for finding in judgement.findings]
        settle(report, timed, judgement.outcome.now.ranks)
    directory.write_json(directory.report_json.name, report)
    directory.write_text(directory.report_text.name, text.render(report))
    directory.write_text(directory.junit.name, junit.render(report))
    return report


def _report(
    directory: RunDirectory,
    programs: Mapping[int, Program],
    judgement: Judgement,
    facts: PlanFacts,
) -> Document:
    # The ranks of which not all is known, by the reason and the line.
    rows: dict[tuple[str, str, int], list[int]] = {}
    for number, standing in judgement.outcome.standings.items():
        if standing.cut is not None:
            site = standing.cut.site
            place = (clean(site.file), site.line) if site is not None else ("", 0)
            rows.setdefault((clean(standing.cut.why), *place), []).append(number)
    unknown = [
        {"why": why, "file": file, "line": line, "ranks": ranks}
        for (why, file, line), ranks in rows.items()
    ]
    outcome, code = _outcome(judgement, facts, bool(unknown) or not programs)
    made = document.build(
        command=facts.command,
        run_dir=directory.path,
        world_size=facts.of,
        duration_s=facts.seconds,
        outcome=outcome,
        exit_code=code,
        findings=[(finding, None) for finding in judgement.findings],
        ranks=judgement.outcome.now.ranks,
        notes=[
            *facts.notes,
            *_not_planned(programs, facts.of),
            *_without_gpus(judgement, facts),
            *directory.failures,
        ],
    )
    made["off"] = []  # what is not known of a plan is said in its own words
    made["undecided"] = [
        {
            "file": clean(row.site.file),
            "line": row.site.line,
            "function": clean(row.site.function),
            "what": clean(row.what),
            "ranks": list(row.ranks),
        }
        for row in judgement.undecided
    ]
    made["classes"] = [
        {"ranks": list(row.ranks), "as": row.first, "calls": row.calls} for row in classes(programs)
    ]
    made["plan"] = {
        "ranks": len(programs),
        "of": facts.of,
        "cores": facts.cores,
        "seconds": round(facts.seconds, 3),
        "steps": facts.steps,
        "unknown": unknown,
    }
    return made


@step("last words")
def _with_last_words(finding: Finding, directory: RunDirectory) -> Finding:
    """Adds what a rank wrote that ended by itself: a plan keeps it in a file, and shows it nowhere
    else."""
    if finding.kind != "rank_died":
        return finding
    rank = finding.culprits[0]
    try:
        written = directory.stderr(rank).read_text(errors="replace")[-MOST_READ:]
    except OSError:
        return finding
    lines = [line for line in written.splitlines() if line.strip()]
    if not lines:
        return finding
    return replace(
        finding, details=[*finding.details, f"rank {rank} wrote: {printable(lines[-1])}"]
    )


def _not_planned(programs: Mapping[int, Program], of: int) -> Iterator[str]:
    absent = sorted(set(range(of)) - set(programs))
    if programs and absent:
        yield (
            f"{ranks_text(absent)} {'are' if len(absent) > 1 else 'is'} not planned: what all "
            "planned ranks of a group give alike is taken to be given there, too, and else is not "
            "known"
        )


def _without_gpus(judgement: Judgement, facts: PlanFacts) -> Iterator[str]:
    """A program is one for CPUs, as its source says, and asks for GPUs all the same."""
    raised = [one.message for one in judgement.findings if one.kind == "rank_exception"]
    if facts.accelerator == "none" and any(map(_OF_GPUS.search, raised)):
        yield (
            "calls for cuda are not answered in this plan, for nothing in the program says that it "
            "is for GPUs alone, such as the backend nccl: `--accelerator cuda` has them answered"
        )


def _outcome(judgement: Judgement, facts: PlanFacts, incomplete: bool) -> tuple[str, int]:
    found = judgement.verdict
    if found is not None:
        return found.kind, found.exit_code
    if incomplete:
        return "failed", EXIT_FAILED
    warnings = [one for one in judgement.findings if one.severity == "warning"]
    if facts.strict and warnings:
        return warnings[0].kind, warnings[0].exit_code or EXIT_FAILED
    return "ok", 0
