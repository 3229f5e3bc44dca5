"""A training step of a small transformer, by backend, all in one run."""

from __future__ import annotations

import argparse
import sys

from distdebug.benchmarks import arguments as read
from distdebug.benchmarks import program
from tests.benchmarks import ddp_figures
from tests.benchmarks.command_line import main

SCHEMA = "distdebug.bench.ddp/1"
BUDGET_S = 120.0
MODELS = ("computing", "communicating")
EPILOG = """\
One step is forward, backward and optimizer under DistributedDataParallel. `computing` is a model of
2.6 MB whose step is almost all arithmetic, `communicating` one of 55 MB that sees 8 tokens a rank.
The backends, and the same step without communication (alone), take turns; times are the median
round's. The bar: tcp is not slower than gloo, and faster where communication dominates.

examples:
  python -m tests.benchmarks.ddp
  python -m tests.benchmarks.ddp --backends tcp,tcp/tcp,gloo --models communicating -n 4"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    read.add_backends(parser, read.TORCH_BACKENDS)
    parser.add_argument(
        "--models",
        default=",".join(MODELS),
        metavar="NAMES",
        help="of " + ", ".join(MODELS) + " (default: both)",
    )
    read.add_ranks(parser, "2,4")
    read.add_budget(parser, BUDGET_S)
    read.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print each row of the table as it comes, then write the file."""
    read.check_seconds(args.budget, "--budget")
    read.check_file(args.json)
    request = {
        "backends": read.read_backends(args.backends, read.TORCH_BACKENDS),
        "models": read.read_names(args.models, "--models", MODELS),
        "ranks": read.read_ranks(args.ranks),
        "budget_s": args.budget,
    }
    words = [sys.executable, "-m", "tests.benchmarks.ddp_ranks"]
    program.compare(words, request, SCHEMA, ddp_figures, args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main("ddp"))
