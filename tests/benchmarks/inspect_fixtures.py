"""How often `distdebug inspect` is right on jobs in which there is nothing of distdebug.

    python tests/benchmarks/inspect_fixtures.py hanging [--by torchrun|mpiexec|mp_spawn] [NAME ...]
    python tests/benchmarks/inspect_fixtures.py correct [NAME ...]

`hanging` starts each buggy fixture, waits until it stands still (`tests/support/standstill.py`),
looks once, and compares the culprits and the line with `fixtures/expected`. A fixture that ends by
itself is no hang, and does not count. `correct` looks at each correct fixture again and again for
as long as it lives, from the moment when it starts. Ends with 1 where a bar is missed: 90 % of the
culprits, no accusation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from distdebug.system.proc import DEAD_STATES, read_stat
from tests.support import foreign_jobs
from tests.support.fixture_table import BUGGY, CORRECT, Expected, expected, names, patient_scripts
from tests.support.runs import DISTDEBUG
from tests.support.standstill import hangs

WAYS = {
    "torchrun": foreign_jobs.torchrun,
    "mpiexec": foreign_jobs.mpiexec,
    "mp_spawn": foreign_jobs.mp_spawn,
}
BAR = 0.9
HUNG_S = 13.0
"""So long a rank has to be asleep before the look."""
FLAGS = ("--hang-timeout", "12")
LIMIT_S = 300.0
LONGEST_LOOKING_S = 40.0
NO_HANG = "ends by itself"
NOT_STILL = "works on: no look"
GAVE_UP = "gave up while it was looked at"


@dataclass(frozen=True)
class Case:
    """A fixture, and what inspect says of it."""

    name: str
    expected: Expected
    kind: str = ""
    culprits: tuple[int, ...] = ()
    right: bool = False
    line: bool = False
    looks: int = 0
    message: str = ""


def may_hang(name: str) -> bool:
    """Whether it may hang: not where it is known to end well by itself."""
    return not (expected(name)["stock"] or "").startswith("exit 0")


def command(one: Expected, by: str, scripts: Path) -> list[str]:
    """How the fixture is started."""
    words = [str(scripts / one["script"]), *one["script_args"]]
    if one["command"] == "exec":
        return [sys.executable, *words]
    return WAYS[by](one["nproc"], words)


def look(pid: int) -> dict[str, Any] | None:
    """What inspect reports; None where there is no rank to look at (yet, or any more)."""
    asked = [str(DISTDEBUG), "inspect", "--job", str(pid), "--json", *FLAGS]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        return None
    if done.returncode:
        raise AssertionError(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def processes_of(running: subprocess.Popen[bytes]) -> set[int]:
    """All that live below the launcher, and it itself: a program that gives up by itself while it
    is looked at, on a busy host, is none that hangs."""
    below = []
    with suppress(psutil.NoSuchProcess):
        below = [running, *psutil.Process(running.pid).children(recursive=True)]
    stats = {one.pid: read_stat(one.pid) for one in below}
    return {pid for pid, stat in stats.items() if stat and stat.state not in DEAD_STATES}


def hanging(name: str, by: str, scripts: Path, keep: Path | None) -> Case:
    """Look once at a fixture that hangs; `keep` gets the report."""
    one = expected(name)
    with (
        tempfile.TemporaryDirectory(prefix="look-", dir="/tmp") as directory,
        foreign_jobs.job(command(one, by, scripts), Path(directory)) as running,
    ):
        if not hangs(running, HUNG_S, LIMIT_S):
            return Case(name, one, NOT_STILL if running.poll() is None else NO_HANG)
        there = processes_of(running)
        report = look(running.pid)
        if there - processes_of(running):
            return Case(name, one, GAVE_UP)
    if keep is not None:
        (keep / f"{name}.{by}.json").write_text(json.dumps(report, indent=1))
    if report is None or not report["findings"]:
        message = "no rank" if report is None else str(report["notes"][:1])
        return Case(name, one, "nothing", looks=1, message=message)
    finding = report["findings"][0]
    culprits = tuple(sorted(finding["culprits"]))
    wanted = sorted(one["culprits"] or culprits)
    shown = finding["ranks"].values()
    lines = {rank["location"]["line"] for rank in shown if rank["location"]}
    return Case(
        name,
        one,
        finding["kind"],
        culprits,
        right=list(culprits) == wanted,
        line=one["line"] is None or bool(lines & {one["line"], *one["or_lines"]}),
        looks=1,
        message=finding["message"],
    )


def correct(name: str, by: str, scripts: Path, keep: Path | None) -> Case:
    """Look at a fixture with which nothing is wrong, until it ends."""
    one = expected(name)
    looks = 0
    with (
        tempfile.TemporaryDirectory(prefix="look-", dir="/tmp") as directory,
        foreign_jobs.job(command(one, by, scripts), Path(directory)) as running,
    ):
        until_s = time.monotonic() + LONGEST_LOOKING_S
        while running.poll() is None and time.monotonic() < until_s:
            report = look(running.pid)
            looks += report is not None
            if report is not None and report["findings"]:
                if keep is not None:
                    (keep / f"{name}.{by}.json").write_text(json.dumps(report, indent=1))
                (finding, *_) = report["findings"]
                culprits = tuple(sorted(finding["culprits"]))
                return Case(
                    name, one, finding["kind"], culprits, looks=looks, message=finding["message"]
                )
    return Case(name, one, right=True, looks=looks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("hanging", "correct"))
    parser.add_argument("--by", choices=tuple(WAYS), default="torchrun")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where reports go, as JSON")
    parser.add_argument("names", nargs="*")
    args = parser.parse_intermixed_args()
    if args.what == "hanging":
        chosen, measure = args.names or list(filter(may_hang, names(BUGGY))), hanging
    else:
        chosen, measure = args.names or names(CORRECT), correct
    cases = []
    with (
        tempfile.TemporaryDirectory(prefix="scripts-", dir="/tmp") as copied,
        ThreadPoolExecutor(args.at_once) as pool,
    ):
        scripts = patient_scripts(Path(copied))
        for case in pool.map(lambda name: measure(name, args.by, scripts, args.keep), chosen):
            print(row(case, args.what), flush=True)
            cases.append(case)
    counted = [case for case in cases if case.looks]
    right = sum(case.right for case in counted)
    if args.what == "correct":
        looks = sum(case.looks for case in counted)
        print(f"{len(counted)} correct programs, {looks} looks: {len(counted) - right} accused")
        return int(right < len(counted))
    lines = sum(case.line for case in counted)
    share = right / max(1, len(counted))
    print(f"{len(counted)} hang, {len(cases) - len(counted)} do not")
    late = [case.name for case in cases if case.kind in (NOT_STILL, GAVE_UP)]
    if late:
        print(f"the host was too slow to look at them in time, look again: {' '.join(late)}")
    print(f"culprits right of {right} ({share:.0%}); their line is shown of {lines}")
    return int(right < BAR * len(counted))


def row(case: Case, what: str) -> str:
    """One line of the table."""
    if what == "correct":
        verdict = "" if case.right else f"{case.kind} {list(case.culprits)} {case.message}"
        return f"{case.name:40} {case.looks:3} looks  {verdict}"
    one = case.expected
    wanted = f"{one['outcome']} {one['culprits']}"
    if not case.looks:
        return f"{case.name:40} {wanted:34} {case.kind}"
    mark = "right" if case.right else "WRONG"
    found = f"{case.kind} {list(case.culprits)}"
    tail = "" if case.right and case.line else case.message[:400]
    return f"{case.name:40} {wanted:34} {mark} {found:34} {'' if case.line else 'NO LINE '}{tail}"


if __name__ == "__main__":
    sys.exit(main())
