"""`distdebug bench comm` with our backend mpi, and beside it Open MPI itself, by bare mpi4py."""

from __future__ import annotations

import argparse
import sys

from distdebug.benchmarks import arguments as read
from distdebug.benchmarks import comm_figures, program
from distdebug.commands import bench
from tests.benchmarks import open_mpi
from tests.benchmarks.command_line import main

BACKENDS = (*read.TORCH_BACKENDS, open_mpi.OURS, open_mpi.NAME)
EPILOG = """\
openmpi is Open MPI itself, by mpi4py (pip install 'distdebug[mpi]'), in processes of its own that
make the same calls on numpy buffers. mpi is our backend, in those same processes; so openmpi is
measured wherever mpi is, and tells what the backend adds. Open MPI's settings are its own: shared
memory within a host, and more ranks than cores allowed. Only, its ranks are not bound to cores and
yield while they wait: bound and spinning they suffer from whatever else runs.

examples:
  python -m tests.benchmarks.comm_open_mpi --backends mpi,tcp,gloo -n 2
  python -m tests.benchmarks.comm_open_mpi --backends tcp,openmpi --ops all_reduce --sizes 1M:64M"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `distdebug bench comm`."""
    bench.KINDS["comm"].configure(parser)
    parser.set_defaults(backends=",".join(("mpi", *read.TORCH_BACKENDS)))


def run(args: argparse.Namespace) -> int:
    """Measure, print each row of the table as it comes, then write the file."""
    read.check_seconds(args.budget, "--budget")
    sizes, ranks = read.read_sizes(args.sizes, args.factor), read.read_ranks(args.ranks)
    backends = read.read_backends(args.backends, BACKENDS)
    if open_mpi.OURS in backends and open_mpi.NAME not in backends:
        backends.insert(backends.index(open_mpi.OURS) + 1, open_mpi.NAME)
    read.check_memory(max(sizes), max(ranks), 5)
    read.check_file(args.json)
    request = {
        "backends": backends,
        "ops": read.read_names(args.ops, "--ops", list(comm_figures.OPS)),
        "sizes": sizes,
        "ranks": ranks,
        "budget_s": args.budget,
    }
    words = [sys.executable, "-m", "tests.benchmarks.open_mpi"]
    program.compare(words, request, bench.COMM_SCHEMA, comm_figures, args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main("comm_open_mpi"))
