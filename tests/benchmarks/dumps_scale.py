"""How long `distdebug report` takes for the dumps of a big job: 16,384 ranks, 20 calls each.

    python -m tests.benchmarks.dumps_scale [RANKS]

Groups of 8 ranks, groups across them, and a world; one rank never issues the last call.
"""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CALLS = 20
GOAL_S = 10.0


def write(folder: Path, ranks: int, culprit: int) -> None:
    """The dumps, with whole lists of members in each, as torch writes them."""
    everybody = str(list(range(ranks)))
    for rank in range(ranks):
        first = rank // 8 * 8
        groups = {
            "0": ("default_pg", everybody),
            f"t{first}": ("tensor", str(list(range(first, first + 8)))),
            f"d{rank % 8}": ("data", str(list(range(rank % 8, ranks, 8)))),
        }
        names = list(groups)
        entries = [
            _entry(number, names[number % 2 + 1], groups, "completed")
            for number in range(CALLS - 1)
        ]
        if rank != culprit:
            entries.append(_entry(CALLS - 1, "0", groups, "scheduled"))
        config = {
            name: {"name": name, "desc": desc, "ranks": members}
            for name, (desc, members) in groups.items()
        }
        dump = {
            "version": "2.10",
            "comm_lib_version": "2.27.3",
            "pg_config": config,
            "pg_status": {},
            "entries": entries,
        }
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def _entry(
    number: int, name: str, groups: dict[str, tuple[str, str]], state: str
) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": list(groups).index(name),
        "process_group": (name, groups[name][0]),
        "collective_seq_id": 1 if name == "0" else number // 2 + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_780_000_000 * 10**9 + number,
        "input_sizes": [[1024, number]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024, number]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1 if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [
            {"name": name, "filename": f"/venv/lib/site-packages/torch/{name}.py", "line": 1}
            for name in ("all_reduce", "wrapper", "step")
        ]
        + [{"name": "main", "filename": "/job/train.py", "line": 30 + number}],
    }


def main() -> int:
    """Write, report, and say how long the report took."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 16_384
    culprit = ranks // 3
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), ranks, culprit)
        started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        said = subprocess.run(
            [sys.executable, "-m", "distdebug", "report", name, "--json"],
            capture_output=True,
            check=True,
        )
        took_s = time.monotonic() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    findings = json.loads(said.stdout)["findings"]
    assert [one["culprits"] for one in findings] == [[culprit]], findings
    print(
        f"{ranks} dumps of {CALLS} calls: {took_s:.1f} s, {cpu_s:.1f} s of a core "
        f"(goal: {GOAL_S:.0f} s)"
    )
    return 0 if took_s < GOAL_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
