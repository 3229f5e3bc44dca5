"""`distdebug bench comm`: how fast backends communicate, all of them in one run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..hook.loading import command
from . import arguments as read
from . import comm_figures, comm_plot, program
from .limits import BUDGET_S

SCHEMA = "distdebug.bench.comm/1"
EPILOG = """\
The backends take turns: each round measures every one of them once, so that what else the machine
does hits all alike. Time is the median round, and in it the slowest rank's mean; sizes, algbw and
busbw are those of nccl-tests. A backend that this torch does not have is left out.

openmpi is Open MPI itself, by mpi4py (pip install 'distdebug[mpi]'), in processes of its own that
make the same calls on numpy buffers. mpi is our backend, in those same processes; so openmpi is
measured wherever mpi is, and tells what the backend adds. Open MPI's settings are its own: shared
memory within a host, and more ranks than cores allowed. Only, its ranks are not bound to cores and
yield while they wait: bound and spinning they suffer from whatever else runs.

examples:
  distdebug bench comm
  distdebug bench comm --backends tcp,openmpi --ops all_reduce --sizes 1M:64M --factor 2 -n 2
  distdebug bench comm --backends tcp,tcp/tcp,gloo --ops all_reduce --sizes 4:64M --factor 4
  distdebug bench comm --sizes 4,64K,16M -n 2 --budget 30 --json comm.json --plot comm.svg"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench comm`."""
    read.add_backends(parser, read.BACKENDS)
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
    read.add_ranks(parser, "2,4,8")
    read.add_budget(parser, BUDGET_S)
    read.add_json(parser)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw time over size into FILE, as SVG"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print each row of the table as it comes, then write the files."""
    request = _request(args)
    read.check_files(args.json, args.plot)
    files = [(args.json, program.as_json), (args.plot, _plot)]
    program.compare(command("benchmarks.communication"), request, SCHEMA, comm_figures, files)
    return 0


def _plot(measured: dict[str, Any]) -> str:
    title = f"time of one call, torch {measured['torch']} on {measured['cores']} cores"
    return comm_plot.plot(measured["rows"], measured["backends"], title)


def _request(args: argparse.Namespace) -> dict[str, Any]:
    read.check_seconds(args.budget, "--budget")
    ops = read.read_names(args.ops, "--ops", read.OPS)
    if args.plot is not None and ops == ["barrier"]:
        raise UsageError("--plot has nothing to draw: a barrier has no size; name another op")
    sizes = read.read_sizes(args.sizes, args.factor)
    ranks = read.read_ranks(args.ranks)
    backends = read.read_backends(args.backends)
    if "mpi" in backends and "openmpi" not in backends:
        backends.insert(backends.index("mpi") + 1, "openmpi")
    # A rank's two buffers, and what a backend sets aside while it moves them.
    read.check_memory(max(sizes), max(ranks), 5 if "openmpi" in backends else 3)
    return {
        "backends": backends,
        "ops": ops,
        "sizes": sizes,
        "ranks": ranks,
        "budget_s": args.budget,
    }
