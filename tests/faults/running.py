"""Runs one case of the matrix and holds what was said against what must be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distdebug.system.proc import DEAD_STATES, read_stat
from tests.support import runs
from tests.support.zygote import Zygote

from .cases import CASES, Case

PROGRAMS = Path(__file__).with_name("programs")
LIMIT_S = 120.0
"""For a whole run. On an idle machine it takes 1 s, and 5 s more where a hang timeout must pass."""
DETECTED_S = 30.0


def matrix() -> Iterator[tuple[Case, str, int]]:
    """Every case with each of its backends and world sizes."""
    for case in CASES:
        for backend in case.backends:
            for size in case.sizes:
                yield case, backend, size


def twins() -> Iterator[tuple[Case, str, int]]:
    """The programs of the matrix without a fault, each once."""
    seen = set()
    for case, backend, size in matrix():
        key = (case.program, case.arguments, case.flags, backend, size, case.own_network)
        if key not in seen:
            seen.add(key)
            clean = replace(case, specs=(), does=(), outcome="ok", exit_code=0, warnings=())
            yield clean, backend, size


def run(zygote: Zygote, case: Case, backend: str, size: int, directory: Path) -> runs.Run:
    """The finished run, which is kept below `directory`."""
    flags = flags_of(case)
    extra = None
    if case.own_network:
        flags.append("--netns")
        extra = {"WORLD_SIZE": str(size)}  # which no flag of this launcher's tells
    return zygote.run(size, program_of(case, backend), directory, flags, extra, limit_s=LIMIT_S)


def flags_of(case: Case) -> list[str]:
    """distdebug's."""
    return [*case.flags, *(word for spec in case.specs for word in ("--inject", spec))]


def program_of(case: Case, backend: str) -> list[str]:
    """The program with its arguments."""
    return [str(PROGRAMS / f"{case.program}.py"), backend, *case.arguments, *case.does]


def complaints(case: Case, size: int, done: runs.Run) -> list[str]:
    """What of the run is not as it must be."""
    found = about_verdict(case, size, done)
    if survivors := alive(done.report):
        found.append(f"still alive: {survivors}")
    return found


def about_verdict(case: Case, size: int, done: runs.Run) -> list[str]:
    """What of the verdict is not as it must be."""
    report, found = done.report, []
    if report["outcome"] != case.outcome:
        found.append(f"outcome {report['outcome']}, not {case.outcome}")
    if done.exit_code != case.exit_code:
        found.append(f"exit code {done.exit_code}, not {case.exit_code}")
    if sorted(set(done.warnings)) != sorted(case.warnings):
        found.append(f"warnings {sorted(set(done.warnings))}, not {sorted(case.warnings)}")
    late = [one["fault"] for one in report.get("injected", ()) if not one["fired"]]
    if late and len(late) == len(case.specs):
        found.append(f"never happened: {late}")
    if case.exit_code:
        found += _of_finding(case, size, done)
    return found


def alive(report: Mapping[str, Any]) -> list[str]:
    """The ranks of a finished run that have outlived it."""
    return [number for number, rank in report["ranks"].items() if _is_alive(rank["pid"])]


def _of_finding(case: Case, size: int, done: runs.Run) -> Iterator[str]:
    finding = next(iter(done.errors), None)
    if finding is None:
        yield "nothing was found"
        return
    culprits = set(finding["culprits"])
    if not case.is_explained_by(culprits, size):
        yield f"culprits {sorted(culprits)}, not {sorted(case.who(size))}"
    if case.cause is not None and finding["cause"] != case.cause:
        yield f"cause {finding['cause']}, not {case.cause}"
    if finding.get("injected") not in (case.specs or (None,)):
        yield f"said to be injected: {finding.get('injected')!r}"
    if finding["detected_after_s"] is None or finding["detected_after_s"] > DETECTED_S:
        yield f"detected after {finding['detected_after_s']} s"


def _is_alive(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state not in DEAD_STATES
