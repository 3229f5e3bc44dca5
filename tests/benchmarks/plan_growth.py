"""What a plan takes, and how that grows with the number of ranks."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from distdebug.benchmarks import arguments as read
from distdebug.benchmarks import program
from distdebug.errors import DistdebugError, UsageError
from tests.benchmarks.command_line import main

SCHEMA = "distdebug.bench.plan/1"
RANKS = "8,64,512,4096"
MOST_RANKS = 65_536
BUDGET_S = 1800.0
GROWTH = 1.5
"""So many times as much a rank may take in the next world: where every rank makes all groups, its
time grows with their number."""
LOOK_COST = 20
"""Memory is looked at for one part in so many of the time."""
EPILOG = """\
The time, the processor time and the memory (of all processes together, what they share counted
once) that `distdebug plan` takes for each number of ranks. The scripts are by default those of
fixtures/scale: DDP, FSDP2, tensor parallel, a 1F1B pipeline, a mesh. Where the next world is
expected to take more than is left of the budget for its script, it is left out.

examples:
  python -m tests.benchmarks.plan_growth
  python -m tests.benchmarks.plan_growth -n 8,128,1024 --budget 300 train.py --json plan.json"""

_COMMAND = (
    "import sys; sys.path[0] = sys.argv.pop(1); from distdebug.cli import main; sys.exit(main())"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("scripts", nargs="*", type=Path, metavar="SCRIPT", help="what is planned")
    read.add_ranks(parser, RANKS)
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help=f"for each script (default: {BUDGET_S:g})",
    )
    read.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table row by row, and write the file."""
    read.check_file(args.json)
    read.check_seconds(args.budget, "--budget")
    sizes = _sizes(args.ranks)
    scripts = args.scripts or _of_the_repository()
    for script in scripts:
        if not script.is_file():
            raise UsageError(f"there is no script {script}")
    print(heading(), flush=True)
    rows: list[dict[str, Any]] = []
    for script in scripts:
        for row in _measured(script, sizes, args.budget):
            rows.append(row)
            print(line(row), flush=True)
    measured = {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "rows": rows,
    }
    program.write(args.json, measured)
    return 0


def _sizes(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and 0 < int(word) <= MOST_RANKS for word in words):
        raise UsageError(f"-n {text}: takes numbers of ranks, from 1 to {MOST_RANKS}")
    return sorted({int(word) for word in words})


def _of_the_repository() -> list[Path]:
    scripts = sorted((_root() / "fixtures" / "scale").glob("*.py"))
    if not scripts:
        raise UsageError("there is no fixtures/scale beside this package: name scripts to plan")
    return scripts


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def _measured(script: Path, sizes: Sequence[int], budget_s: float) -> Iterator[dict[str, Any]]:
    left_s = budget_s
    done: list[tuple[int, float]] = []
    for size in sizes:
        expected_s = _expected_s(done, size)
        if expected_s > left_s:
            yield {"script": script.name, "ranks": size, "left_out": round(expected_s)}
            continue
        row = _one(script, size)
        yield row
        left_s -= row["seconds"]
        done.append((size, row["seconds"]))


def _expected_s(done: Sequence[tuple[int, float]], size: int) -> float:
    """From the last two worlds: what each further rank took. A single one tells only what it takes
    to begin."""
    if len(done) < 2:
        return 0.0
    (less, less_s), (last, last_s) = done[-2:]
    return last_s + GROWTH * max(0.0, last_s - less_s) / (last - less) * (size - last)


def _one(script: Path, size: int) -> dict[str, Any]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("DISTDEBUG_", "TORCH_D"))}
    with tempfile.TemporaryDirectory(prefix="distdebug-bench-") as folder:
        directory = Path(folder) / "plan"
        command = [sys.executable, "-c", _COMMAND, str(_root()), "plan"]
        command += ["-n", str(size), "--run-dir", str(directory), str(script)]
        before, began_s = _processor_s(), time.monotonic()
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=variables
            )
            try:
                memory_bytes = _most_memory(process)
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait()
            seconds = time.monotonic() - began_s
            report = _object(directory / "report.json")
            if not report:
                said.seek(0)
                last = (said.read().decode(errors="replace").strip().splitlines() or ["nothing"])[
                    -1
                ]
                raise DistdebugError(f"the plan of {size} ranks of {script} failed: {last[:300]}")
        planned = _object(directory / "planned.json")
        return {
            "script": script.name,
            "ranks": size,
            "outcome": report["outcome"],
            "seconds": round(seconds, 2),
            "ranks_s": planned.get("seconds"),
            "processor_s": round(_processor_s() - before, 2),
            "memory_bytes": memory_bytes,
            "processes": planned.get("runs"),
            "calls": sum(one["calls"] for one in report["ranks"].values()),
        }


def _processor_s() -> float:
    """Of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _most_memory(process: subprocess.Popen[bytes]) -> int:
    """Until it has ended: the most that it and all processes below it have had."""
    most = 0
    while process.poll() is None:
        began_s = time.monotonic()
        most = max(most, _memory(process.pid))
        pause_s = max(0.2, LOOK_COST * (time.monotonic() - began_s))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(pause_s)
    return most


def _memory(pid: int) -> int:
    total = 0
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for one in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += one.memory_full_info().pss
    return total


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def heading() -> str:
    """Above the rows."""
    return (
        f"{'script':24}{'ranks':>8}{'seconds':>10}{'processor s':>13}{'ms a rank':>11}"
        f"{'MiB':>8}{'processes':>11}{'calls':>11}   outcome"
    )


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    start = f"{row['script'][:23]:24}{row['ranks']:8,}"
    if "left_out" in row:
        return f"{start}   left out: it is expected to take {row['left_out']:,} s"
    return (
        f"{start}{row['seconds']:10.1f}{row['processor_s']:13.1f}"
        f"{1000 * row['processor_s'] / row['ranks']:11.0f}{row['memory_bytes'] / (1 << 20):8.0f}"
        f"{row['processes'] or 0:11,}{row['calls']:11,}   {row['outcome']}"
    )


if __name__ == "__main__":
    raise SystemExit(main("plan_growth"))
