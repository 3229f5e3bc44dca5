"""`distdebug bench comm`: how fast backends communicate, all of them in one run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from ..errors import DistdebugError, UsageError
from . import comm_figures, comm_plot

SCHEMA = "distdebug.bench.comm/1"
BUDGET_S = 120.0
EPILOG = """\
The backends take turns: each round measures every one of them once, so that what else the machine
does hits all alike. Time is the median round, and in it the slowest rank's mean; sizes, algbw and
busbw are those of nccl-tests. A backend that this torch does not have is left out.

examples:
  distdebug bench comm
  distdebug bench comm --backends tcp,tcp/tcp,gloo --ops all_reduce --sizes 4:64M --factor 4
  distdebug bench comm --sizes 4,64K,16M -n 2 --budget 30 --json comm.json --plot comm.svg"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench comm`."""
    parser.add_argument(
        "--backends",
        default="tcp,gloo",
        metavar="NAMES",
        help="of tcp, gloo, mpi; tcp/auto, tcp/tcp, tcp/shm: tcp with that DISTCORE_TRANSPORT "
        "(default: tcp,gloo); they are compared with gloo, or with the last",
    )
    parser.add_argument(
        "--ops",
        default=",".join(comm_figures.OPS),
        metavar="NAMES",
        help="of " + ", ".join(comm_figures.OPS) + " (default: all)",
    )
    parser.add_argument(
        "--sizes",
        default="4:64M",
        metavar="SIZES",
        help="bytes, such as 4,64K,1M; 4:64M is 4, 4*FACTOR, ... up to 64M (default: 4:64M)",
    )
    parser.add_argument("--factor", type=int, default=16, help="see --sizes (default: 16)")
    parser.add_argument(
        "-n",
        dest="ranks",
        default="2,4,8",
        metavar="RANKS",
        help="numbers of ranks (default: 2,4,8)",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S,
        metavar="SECONDS",
        help="how long all of it may take; a smaller one makes fewer rounds, at least one "
        f"(default: {BUDGET_S:.0f})",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to FILE as well"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw time over size into FILE, as SVG"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print each row of the table as it comes, then write the files."""
    request = _request(args)
    for file in (args.json, args.plot):
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"{file.parent} is not a directory; name a file in one that is")
    lines = _start(request)
    began = next(lines)
    backends: list[str] = began["backends"]
    for skipped in began["skipped"]:
        print(f"{skipped['backend']} is left out: {skipped['why']}")
    print("\n".join(comm_figures.heading(backends)), flush=True)
    rows = []
    failure: DistdebugError | None = None
    try:
        for row in lines:
            rows.append(comm_figures.summarise(row, backends))
            print(comm_figures.line(rows[-1]), flush=True)
    except DistdebugError as error:
        failure = error  # what was measured before is written nevertheless
    measured = {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "torch": began["torch"],
        "cores": os.cpu_count(),
        "budget_s": args.budget,
        "backends": backends,
        "baseline": comm_figures.baseline(backends),
        "skipped": began["skipped"],
        "rows": rows,
        "error": None if failure is None else str(failure),
    }
    title = f"time of one call, torch {began['torch']} on {os.cpu_count()} cores"
    _write(args.json, json.dumps(measured, indent=2) + "\n")
    _write(args.plot, comm_plot.plot(rows, backends, title))
    if failure is not None:
        raise failure
    return 0


def _request(args: argparse.Namespace) -> dict[str, Any]:
    if not 0 < args.budget <= 86_400:
        raise UsageError(f"--budget {args.budget:g} is not between 0 and 86400 seconds")
    ops = comm_figures.read_ops(args.ops)
    if args.plot is not None and ops == ["barrier"]:
        raise UsageError("--plot has nothing to draw: a barrier has no size; name another op")
    sizes = comm_figures.read_sizes(args.sizes, args.factor)
    ranks = comm_figures.read_ranks(args.ranks)
    # A rank's two buffers, and what a backend sets aside while it moves them.
    needed, free = 3 * max(ranks) * max(sizes), psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"{comm_figures.size_text(max(sizes))} on {max(ranks)} ranks take about "
            f"{comm_figures.size_text(needed)} of memory, and {comm_figures.size_text(free)} are "
            "free; choose smaller --sizes or fewer ranks"
        )
    return {
        "backends": comm_figures.read_backends(args.backends),
        "ops": ops,
        "sizes": sizes,
        "ranks": ranks,
        "budget_s": args.budget,
    }


def _start(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run `debugger.benchmarks.communication`; what it prints: the first line says what is
    measured, each other one is a row. Raises DistdebugError when it fails."""
    module = f"{__package__.rpartition('.')[0]}.benchmarks.communication"
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("DISTDEBUG_", "TORCH_D"))}
    variables["OMP_NUM_THREADS"] = "1"  # as torchrun does
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env=variables,
        )
        assert process.stdout is not None
        try:
            for text in process.stdout:
                found: dict[str, Any] = json.loads(text)
                if "error" in found:
                    raise DistdebugError(f"{module}: {found['error']}")
                yield found
            if process.wait() < 0:
                raise DistdebugError(f"{module} was ended by signal {-process.returncode}")
            if process.returncode != 0:
                complaints.seek(0)
                said = complaints.read().decode(errors="backslashreplace").strip().splitlines()
                last = (said or ["it said nothing"])[-1]
                raise DistdebugError(f"{module} ended with {process.returncode}: {last[:300]}")
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its ranks
            process.wait()
            process.stdout.close()


def _write(file: Path | None, text: str) -> None:
    if file is None:
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
