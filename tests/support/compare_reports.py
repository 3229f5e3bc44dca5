"""Whether two states of the code say the same of the same programs: their report.json compared.

    python tests/support/compare_reports.py keep OUT [NAME ...]   runs fixtures, keeps their reports
    python tests/support/compare_reports.py diff ONE OTHER [KEY ...]

`diff` has exit code 1 where they differ, but for what is below the KEYs: fields that are new, or
`ranks`, where each rank was found at that moment.

`keep` is run in the root of each of the two trees; it forks all ranks from one server that has
torch loaded. Times, pids, ports, addresses and places of files are masked, and stacks and counts of
calls left out. What still depends on the moment (where a rank was that goes on) is for the reader.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

SAMPLE = """
    breakpoint_on_local_condition ddp_transformer ddp_unused_one_rank deadlock_collective_p2p
    deadlock_ring died_sigkill died_sys_exit divergence_seeds dtype_broadcast early_finisher
    exception_finally_barrier exception_train_step exit_before_barrier exit_uneven_data_loader
    forked_os_fork group_order inflight_write invalid_root join_never_calls_init join_port_taken
    missing_lock missing_sleep missing_stopped nan_one_rank not_in_group_barrier op_after_500_steps
    op_async_handles overflow_half p2p_size reduce_op_sum_max root_reduce_dst shape_buckets
    split_replay stalled_nobody_serves straggler_one_rank unmatched_send unsafe_strided_broadcast
    unwaited_all_reduce
"""
_MASKED_KEYS = {
    "calls",
    "detected_after_s",
    "duration_s",
    "ended_after_s",
    "last_heartbeat_s",
    "stack",
    "stacks",
    "versions",
}
_MASKS = (
    (r"0x[0-9a-f]+", "0xN"),
    (r"\bpid \d+", "pid N"),
    (r"\bprocess \d+", "process N"),
    (r"\d+(?:\.\d+)? (?:ns|us|ms|s|min|h)\b", "T s"),
    (r"\b(?:127\.\d+\.\d+\.\d+|localhost|\[::1\]):\d+", "HOST:PORT"),
    (r"\bport \d+", "port N"),
    (r"[\w./-]*/(?=fixtures/|torch/|debugger/|distcore/|tests/)", ""),
    (r"/tmp/[\w./-]+", "TMP"),
)


def keep(out: Path, names: list[str]) -> None:
    """Run the programs, and keep their reports, masked, below `out`."""
    sys.path.insert(0, os.getcwd())
    from tests.support.zygote import Zygote

    root = Path.cwd()
    out.mkdir(parents=True, exist_ok=True)
    zygote = Zygote()
    try:
        for name in names or SAMPLE.split():
            path = root / "fixtures" / "expected" / f"{name}.json"
            if not path.exists():
                print(f"{name}: there is no such program")
                continue
            expected = json.loads(path.read_text())
            program = [
                str(root / "fixtures/scripts" / expected["script"]),
                *expected["script_args"],
            ]
            with tempfile.TemporaryDirectory() as place:
                done = zygote.run(expected["nproc"], program, Path(place), expected["args"])
                report = {"code": done.exit_code, **done.report}
            text = json.dumps(masked(report), indent=1, sort_keys=True)
            (out / f"{name}.json").write_text(text)
            print(f"{name}: {report['outcome']}, {done.exit_code}", flush=True)
    finally:
        zygote.close()


def masked(value: Any, key: str = "") -> Any:
    """The report without what is another one at every run."""
    if isinstance(value, dict):
        return {name: masked(one, name) for name, one in value.items() if name not in _MASKED_KEYS}
    if isinstance(value, list):
        return [masked(one, key) for one in value]
    if isinstance(value, str):
        for pattern, instead in _MASKS:
            value = re.sub(pattern, instead, value)
        return value
    if isinstance(value, float) or key.endswith(("_ns", "_s", "pid", "port")):
        return "N"
    return value


def without(value: Any, keys: list[str]) -> Any:
    """The report less what is below these keys."""
    if isinstance(value, dict):
        return {name: without(one, keys) for name, one in value.items() if name not in keys}
    return [without(one, keys) for one in value] if isinstance(value, list) else value


def diff(one: Path, other: Path, keys: list[str]) -> int:
    """Print where two folders of reports differ; how many do."""
    names = sorted({path.name for path in (*one.glob("*.json"), *other.glob("*.json"))})
    differing = 0
    for name in names:
        texts = [
            json.dumps(without(json.loads((place / name).read_text()), keys), indent=1)
            if (place / name).exists()
            else ""
            for place in (one, other)
        ]
        if texts[0] != texts[1]:
            differing += 1
            lines = difflib.unified_diff(
                *(text.splitlines() for text in texts), "one", "other", n=2
            )
            print(f"=== {name}", *lines, sep="\n")
    print(f"{len(names)} reports, {differing} differ")
    return differing


def main(arguments: list[str]) -> int:
    """What the module's first lines say."""
    match arguments:
        case ["keep", out, *names]:
            keep(Path(out).absolute(), names)
            return 0
        case ["diff", one, other, *keys]:
            return int(diff(Path(one), Path(other), keys) > 0)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
