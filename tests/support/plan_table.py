"""Plans fixtures, each at its own size, and compares what is said with what they declare.

python -m tests.support.plan_table [NAME ...]        # all in scope, as a table
python -m tests.support.plan_table --ranks 64        # with so many ranks, culprits by their roles
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import fixture_table, runs
from tests.support.plan_roles import Culprits, FixedCount, Roles
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
WRITTEN_FOR = {
    "any_source_no_cycle": "its server receives from one worker of those that send",
    "deadlock_send_first": "each rank's peer is 1 - rank",
    "detail_messages_reshaped": "rank 0 sends to rank 1 only, and all others receive",
    "disjoint_groups_counts": "ranks from 4 on call broadcast on a group that they are not in",
    "divergence_hybrid_shards": "its mesh is 2 by 2",
    "early_finisher": "its group is of ranks 0 to 2, and only rank 3 makes no call on it",
    "exit_after_isend": "rank 0 sends to rank 1 only, and all others receive",
    "exit_last_stage": "its stages are no more than its microbatches",
    "exit_store_host_last": "its second group is of ranks 1 and 2; to others that group is all",
    "op_branch_in_each_row": "its mesh is 2 by 2",
    "thread_for_each_message": "each rank's peer is 1 - rank",
}
"""Programs for a fixed count of ranks, where `plan_roles` does not see it; and why."""


def in_scope() -> list[str]:
    """The fixtures whose verdict a record can prove, and the correct ones."""
    names = sorted(path.stem for path in (FIXTURES / "expected").glob("*.json"))
    rows = {name: fixture_table.expected(name) for name in names}
    return [
        name for name, row in rows.items() if row["command"] == "run" and row["outcome"] in IN_SCOPE
    ]


def script_of(name: str) -> Path:
    return FIXTURES / "scripts" / str(fixture_table.expected(name)["script"])


def arguments_of(name: str, ranks: int = 0) -> list[str]:
    """The arguments of `distdebug plan` for the fixture, at its own size or with so many ranks."""
    expected = fixture_table.expected(name)
    size = str(ranks or expected["nproc"])
    return ["-n", size, str(script_of(name)), *expected["script_args"]]


def only_for_its_size(name: str, ranks: int) -> str:
    """Why the program is none for so many ranks; "" where it is."""
    try:
        Roles(script_of(name), ranks)
    except FixedCount as error:
        return str(error)
    return WRITTEN_FOR.get(name, "")


def wrong(name: str, done: runs.Run, ranks: int = 0) -> str:
    """What a plan of the fixture, with so many ranks, said otherwise than it declares."""
    expected = fixture_table.expected(name)
    script = script_of(name)
    culprits = None
    if ranks and ranks != expected["nproc"] and expected["culprits"]:
        culprits = Culprits(expected, script, ranks)
    return difference(expected, done.report, done.exit_code, script, culprits)


def difference(
    expected: Mapping[str, Any],
    report: Mapping[str, Any],
    status: int,
    script: Path,
    at_this_size: Culprits | None = None,
) -> str:
    """What of the report is not as declared: "" where all is. `at_this_size`: the culprits, where
    it is not the declared one."""
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
    if at_this_size is not None:
        if not at_this_size.are(found["culprits"]):
            return f"culprits {found['culprits']}, not {at_this_size}"
    elif culprits is not None and sorted(found["culprits"]) != sorted(culprits):
        return f"culprits {found['culprits']}, not {culprits}"
    if expected["line"] is None:
        return ""
    line_of = expected["line_of"]
    if at_this_size is not None and not at_this_size.same_roles:
        line_of = "any"
    ranks = {
        "culprit": found["culprits"],
        "victim": found["victims"],
        "any": [*found["culprits"], *found["victims"]],
    }[line_of]
    lines = set()
    for rank in ranks:
        where = found["ranks"].get(str(rank), {}).get("location")
        if where and Path(where["file"]).name == script.name:
            lines.add(where["line"])
    wanted = {expected["line"], *expected["or_lines"]}
    return "" if lines & wanted else f"lines {sorted(lines)}, not {sorted(wanted)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ranks", type=int, default=0, help="instead of each one's own")
    asked = parser.parse_args()
    loaded = TorchLoaded()
    rows = asked.names or [name for name in in_scope() if name not in BEYOND]
    bad = fixed = 0
    for name in rows:
        title = f"{name:<36}{fixture_table.expected(name)['outcome']:<20}"
        why = only_for_its_size(name, asked.ranks) if asked.ranks else ""
        if why:
            fixed += 1
            print(f"-   {title}written for a fixed count: {why}", flush=True)
            continue
        said, why, stderr = _planned(loaded, name, asked.ranks)
        bad += bool(why)
        print(f"{'BAD' if why else 'ok':<4}{title}{said}  {why}", flush=True)
        if why and len(rows) == 1:
            print(stderr)
    loaded.close()
    print(f"{bad} of {len(rows) - fixed} not as declared; {fixed} are written for a fixed count")
    return 1 if bad else 0


def _planned(loaded: TorchLoaded, name: str, ranks: int) -> tuple[str, str, str]:
    """What a plan of it said, what of that is wrong, and its whole text."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        try:
            done = plan(loaded, arguments_of(name, ranks), Path(scratch))
        except TimeoutError as error:
            return "nothing", str(error), ""
        if not (Path(scratch) / "run" / "report.json").exists():
            return f"status {done.exit_code}", "no report", done.stderr
        report = done.report
        said = f"{report['outcome']}, {len(report['undecided'])} undecided"
        said += f", {report['duration_s']:.1f} s"
        return said, wrong(name, done, ranks), done.stderr


if __name__ == "__main__":
    raise SystemExit(main())
