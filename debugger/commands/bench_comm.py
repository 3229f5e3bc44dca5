"""`distdebug bench comm`: how fast backends communicate, all of them in one run."""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UsageError
from . import bench_arguments as read
from . import bench_program, comm_figures, comm_plot

SCHEMA = "distdebug.bench.comm/1"
BUDGET_S = 120.0
EPILOG = """\
The backends take turns: each round measures every one of them once, so that what else the machine
does hits all alike. Time is the median round, and in it the slowest rank's mean; sizes, algbw and
busbw are those of nccl-tests. A backend that this torch does not have is left out.

openmpi is Open MPI itself, by mpi4py (pip install 'distdebug[mpi]'), in processes of its own that
make the same calls on numpy buffers; mpi is torch's backend of that name. Open MPI's settings are
its own: shared memory within a host, and more ranks than cores allowed. Only, its ranks are not
bound to cores and yield while they wait: bound and spinning they suffer from whatever else runs.

examples:
  distdebug bench comm
  distdebug bench comm --backends tcp,openmpi --ops all_reduce --sizes 1M:64M --factor 2 -n 2
  distdebug bench comm --backends tcp,tcp/tcp,gloo --ops all_reduce --sizes 4:64M --factor 4
  distdebug bench comm --sizes 4,64K,16M -n 2 --budget 30 --json comm.json --plot comm.svg"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench comm`."""
    parser.add_argument(
        "--backends",
        default="tcp,gloo",
        metavar="NAMES",
        help="of tcp, gloo, mpi, openmpi; tcp/auto, tcp/tcp, tcp/shm: tcp with that "
        "DISTCORE_TRANSPORT (default: tcp,gloo); they are compared with gloo, or with the last",
    )
    parser.add_argument(
        "--ops",
        default=",".join(read.OPS),
        metavar="NAMES",
        help="of " + ", ".join(read.OPS) + " (default: all)",
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
    read.check_files(args.json, args.plot)
    lines = bench_program.start("communication", request)
    began = next(lines)
    backends: list[str] = began["backends"]
    bench_program.print_skipped(began)
    print("\n".join(comm_figures.heading(backends)), flush=True)
    rows, failure = bench_program.collect(
        lines, partial(comm_figures.summarise, backends=backends), comm_figures.line
    )
    measured = {
        "schema": SCHEMA,
        **bench_program.described(began),
        "budget_s": args.budget,
        "baseline": comm_figures.baseline(backends),
        "rows": rows,
        "error": None if failure is None else str(failure),
    }
    title = f"time of one call, torch {began['torch']} on {os.cpu_count()} cores"
    bench_program.write(args.json, json.dumps(measured, indent=2) + "\n")
    bench_program.write(args.plot, comm_plot.plot(rows, backends, title))
    if failure is not None:
        raise failure
    return 0


def _request(args: argparse.Namespace) -> dict[str, Any]:
    read.check_seconds(args.budget, "--budget")
    ops = read.read_names(args.ops, "--ops", read.OPS)
    if args.plot is not None and ops == ["barrier"]:
        raise UsageError("--plot has nothing to draw: a barrier has no size; name another op")
    sizes = read.read_sizes(args.sizes, args.factor)
    ranks = read.read_ranks(args.ranks)
    backends = read.read_backends(args.backends)
    # A rank's two buffers, and what a backend sets aside while it moves them.
    read.check_memory(max(sizes), max(ranks), 5 if "openmpi" in backends else 3)
    return {
        "backends": backends,
        "ops": ops,
        "sizes": sizes,
        "ranks": ranks,
        "budget_s": args.budget,
    }
