"""Plans fixtures, each at its own size, and compares what is said with what they declare.

python -m tests.support.plan_table [NAME ...]        # all in scope, as a table
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import runs
from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded

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
BEYOND = {
    "detail_raised_in_agreement": "it raises where ranks agree at DETAIL, and a plan asks nobody",
    "detail_signal_in_agreement": "a signal comes by the clock, and a plan has none",
    "exec_again": "a planned rank that executes another program is not followed",
    "exception_partial_sums": "it looks at numbers that gloo leaves in a buffer",
    "exit_dropped_isend": "the receiver is late by the clock; told as what needs luck",
    "exit_store_host": "a store that is gone is no call",
    "inflight_read_fine": "a dispatch mode of the program's own hears nothing of a backward pass",
    "timeout_tried_again": "nothing takes time in a plan, so no wait comes to its time limit",
}
"""Declared, and not to be known from programs, or not yet; and why."""


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


def arguments_of(name: str) -> list[str]:
    """The arguments of `distdebug plan` for the fixture at its own size."""
    expected = declared(name)
    script = FIXTURES / "scripts" / expected["script"]
    return ["-n", str(expected["nproc"]), str(script), *expected["script_args"]]


def wrong(name: str, done: runs.Run) -> str:
    """What a plan of the fixture said otherwise than it declares."""
    expected = declared(name)
    script = FIXTURES / "scripts" / expected["script"]
    return difference(expected, done.report, done.exit_code, script)


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
    loaded = TorchLoaded()
    bad = 0
    rows = list(names) or in_scope()
    for name in rows:
        scratch = Path(tempfile.mkdtemp())
        done = plan(loaded, arguments_of(name), scratch)
        if not (scratch / "run" / "report.json").exists():
            said, why = f"status {done.exit_code}", "no report"
        else:
            report = done.report
            said, why = report["outcome"], wrong(name, done)
            said += f", {len(report['undecided'])} undecided, {report['duration_s']:.1f} s"
        bad += bool(why)
        word = "BAD" if why else "ok"
        print(f"{word:<4}{name:<36}{declared(name)['outcome']:<20}{said}  {why}", flush=True)
        if why and len(rows) == 1:
            print(done.stderr)
        shutil.rmtree(scratch)
    loaded.close()
    print(f"{bad} of {len(rows)} not as declared")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
