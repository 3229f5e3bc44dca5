"""Plans fixtures, each at its own size, and compares what is said with what they declare.

python -m tests.support.plan_table [NAME ...]        # all in scope, as a table
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
IN_SCOPE = (
    "ok",
    "op_mismatch",
    "shape_mismatch",
    "dtype_mismatch",
    "reduce_op_mismatch",
    "root_mismatch",
    "split_mismatch",
    "group_mismatch",
    "p2p_mismatch",
    "unmatched_p2p",
    "deadlock",
    "early_exit",
    "rank_exception",
    "invalid_argument",
)
LIMIT_S = 300.0


@dataclass(frozen=True)
class PlanRow:
    """What a fixture declares and what a plan of it said. `wrong` is "" where they agree."""

    name: str
    expected: str
    said: str
    undecided: int
    wrong: str
    seconds: float
    text: str = ""


def declared(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / "expected" / f"{name}.json").read_text())
    return found


def in_scope() -> list[str]:
    """The fixtures whose verdict a record can prove, and the correct ones."""
    names = sorted(path.stem for path in (FIXTURES / "expected").glob("*.json"))
    rows = {name: declared(name) for name in names}
    return [
        name for name, row in rows.items() if row["command"] == "run" and row["outcome"] in IN_SCOPE
    ]


def plan_of(name: str, directory: Path, flags: Sequence[str] = ()) -> PlanRow:
    """Plan the fixture into that directory, which must not exist."""
    expected = declared(name)
    script = FIXTURES / "scripts" / expected["script"]
    command = ["-n", str(expected["nproc"]), "--run-dir", str(directory), *flags]
    status, said = planned([*command, str(script), *expected["script_args"]], directory.parent)
    try:
        report = json.loads((directory / "report.json").read_text())
    except (OSError, ValueError):
        wrong = f"no report, status {status}"
        return PlanRow(name, expected["outcome"], "-", 0, wrong, 0.0, said[-3000:])
    wrong = difference(expected, report, status, script)
    undecided = len(report["undecided"])
    seconds = report["duration_s"]
    return PlanRow(name, expected["outcome"], report["outcome"], undecided, wrong, seconds, said)


def planned(arguments: Sequence[str], scratch: Path) -> tuple[int, str]:
    """`distdebug plan` with these arguments, in a child of this process, which has torch loaded:
    its status, and what it said. What runs the ranks is forked as well, and not started anew."""
    import torch.distributed

    from debugger import cli
    from debugger.plan import planner

    assert torch.distributed.is_available()
    said = scratch / "said"
    pid = os.fork()
    if pid == 0:
        status = 120
        try:
            signal.alarm(int(LIMIT_S))
            os.setpgid(0, 0)
            descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            planner.subprocess.run = _run_forker  # type: ignore[assignment]
            status = cli.main(["plan", *arguments])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, raw = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(raw), said.read_text()


def _run_forker(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """In place of a process that imports torch by itself."""
    pid = os.fork()
    if pid == 0:
        status = 121
        try:
            import io

            from debugger.rank.plan import forker

            sys.stdin = io.StringIO(how["input"])
            forker.main()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, raw = os.waitpid(pid, 0)
    return subprocess.CompletedProcess(list(command), os.waitstatus_to_exitcode(raw))


def difference(
    expected: Mapping[str, Any], report: Mapping[str, Any], status: int, script: Path
) -> str:
    """What of the report is not as declared: "" where all is."""
    if report["outcome"] != expected["outcome"]:
        return f"outcome {report['outcome']}"
    if status != expected["exit_code"] or report["exit_code"] != status:
        return f"exit code {status}"
    if expected["outcome"] == "ok":
        bad = [one["kind"] for one in report["findings"]]
        extra = [kind for kind in bad if kind not in expected["warnings"]]
        if extra:
            return f"findings {extra}"
        return "" if len(report["undecided"]) <= 3 else f"{len(report['undecided'])} undecided"
    found = next(one for one in report["findings"] if one["severity"] == "error")
    culprits = expected["culprits"]
    if culprits is not None and sorted(found["culprits"]) != sorted(culprits):
        return f"culprits {found['culprits']}, not {culprits}"
    if expected["line"] is None:
        return ""
    ranks = {
        "culprit": found["culprits"],
        "victim": found["victims"],
        "any": [*found["culprits"], *found["victims"]],
    }[expected["line_of"]]
    lines = set()
    for rank in ranks:
        where = found["ranks"].get(str(rank), {}).get("location")
        if where and Path(where["file"]).name == script.name:
            lines.add(where["line"])
    wanted = {expected["line"], *expected["or_lines"]}
    return "" if lines & wanted else f"lines {sorted(lines)}, not {sorted(wanted)}"


def main(names: Sequence[str]) -> int:
    wrong = 0
    for name in names or in_scope():
        scratch = Path(tempfile.mkdtemp())  # no TemporaryDirectory, which ranks that end remove
        row = plan_of(name, scratch / "run")
        shutil.rmtree(scratch)
        wrong += bool(row.wrong)
        print(
            f"{'    ' if not row.wrong else 'BAD '}{row.name:<36} {row.expected:<20} "
            f"{row.said:<20} {row.undecided:>2} undecided {row.seconds:6.1f} s  {row.wrong}",
            flush=True,
        )
        if row.wrong and len(names) == 1:
            print(row.text)
    print(f"{wrong} of {len(names or in_scope())} not as declared")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
