"""Report documents for tests, made from findings and from synthetic runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distdebug.diagnosis.findings import CallIs, Finding, RankEvidence
from distdebug.record.snapshot import CallSite, Rank
from distdebug.record.wording import RankState
from distdebug.reports import document
from tests.unit.diagnosis.builder import Run

RUN_DIR = Path(".distdebug/20260310-141502-7f3a")


def at(
    state: str, call: str | None, line: int, function: str = "step", file: str = "/home/u/train.py"
) -> RankEvidence:
    """What the call is to the state follows from the state here, as in the rules."""
    call_is = CallIs.OBJECT if state in (RankState.WAITS_IN, RankState.STOPPED_IN) else CallIs.LAST
    if state.startswith(("called #", "sends", "receives")):
        call_is = CallIs.ALL
    return RankEvidence(state, call, CallSite(file, line, function), (), call_is)


def report(
    findings: Sequence[Finding] = (),
    *,
    ranks: Mapping[int, Rank] | None = None,
    outcome: str | None = None,
    exit_code: int | None = None,
    world_size: int = 4,
    **more: Any,
) -> document.Document:
    return document.build(
        command=["distdebug", "run", "-n", "4", "train.py"],
        run_dir=RUN_DIR,
        world_size=world_size,
        duration_s=12.1,
        outcome=outcome or (findings[0].kind if findings else "ok"),
        exit_code=(findings[0].exit_code if findings else 0) if exit_code is None else exit_code,
        findings=[(finding, 0.1234) for finding in findings],
        ranks=ranks or {},
        **more,
    )


def of_run(run: Run, **more: Any) -> document.Document:
    """The report of a synthetic run, diagnosed for real."""
    found = run.errors()
    return report(found, ranks=run.snapshot().ranks, world_size=len(run.snapshot().ranks), **more)
