"""`distdebug bench ddp`: a training step of a small transformer, by backend, all in one run."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import bench_arguments as read
from . import bench_program
from .comm_figures import baseline, size_text

SCHEMA = "distdebug.bench.ddp/1"
BUDGET_S = 120.0
MODELS = ("computing", "communicating")
ALONE = "alone"
EPILOG = """\
One step is forward, backward and optimizer under DistributedDataParallel. `computing` is a model of
2.6 MB whose step is almost all arithmetic, `communicating` one of 55 MB that sees 8 tokens a rank.
The backends, and the same step without communication (alone), take turns; times are the median
round's. The bar: tcp is not slower than gloo, and faster where communication dominates.

examples:
  distdebug bench ddp
  distdebug bench ddp --backends tcp,tcp/tcp,gloo --models communicating -n 4 --json ddp.json"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench ddp`."""
    parser.add_argument(
        "--backends",
        default="tcp,gloo",
        metavar="NAMES",
        help="as for `bench comm`, without openmpi (default: tcp,gloo)",
    )
    parser.add_argument(
        "--models",
        default=",".join(MODELS),
        metavar="NAMES",
        help="of " + ", ".join(MODELS) + " (default: both)",
    )
    parser.add_argument(
        "-n", dest="ranks", default="2,4", metavar="RANKS", help="numbers of ranks (default: 2,4)"
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


def run(args: argparse.Namespace) -> int:
    """Measure, print each row of the table as it comes, then write the file."""
    read.check_seconds(args.budget, "--budget")
    read.check_files(args.json)
    request = {
        "backends": read.read_backends(args.backends, read.TORCH_BACKENDS),
        "models": read.read_names(args.models, "--models", MODELS),
        "ranks": read.read_ranks(args.ranks),
        "budget_s": args.budget,
    }
    lines = bench_program.start("ddp", request)
    began = next(lines)
    backends: list[str] = began["backends"]
    bench_program.print_skipped(began)
    print("\n".join(heading(backends)), flush=True)
    rows, failure = bench_program.collect(lines, partial(summarise, backends=backends), line)
    measured = {
        "schema": SCHEMA,
        **bench_program.described(began),
        "budget_s": args.budget,
        "baseline": baseline(backends),
        "rows": rows,
        "error": None if failure is None else str(failure),
    }
    bench_program.write(args.json, json.dumps(measured, indent=2) + "\n")
    if failure is not None:
        raise failure
    return 0


def summarise(row: dict[str, Any], backends: Sequence[str]) -> dict[str, Any]:
    """The figures of one row of `debugger.benchmarks.ddp`: `speedup` is the median of the rounds'
    baseline time over time."""
    base = row["ways"][baseline(backends)]["rounds_us"]
    figures = {}
    for name, taken in row["ways"].items():
        pairs = zip(base, taken["rounds_us"], strict=True)
        figures[name] = {
            "step_ms": statistics.median(taken["rounds_us"]) / 1000,
            "cpu_ms": statistics.median(taken["cpu_us"]) / 1000,
            "speedup": statistics.median(theirs / ours for theirs, ours in pairs),
            "rounds_us": taken["rounds_us"],
        }
    where = {key: row[key] for key in ("model", "ranks", "gradient_bytes")}
    return {**where, "rounds": len(base), "ways": figures}


def heading(backends: Sequence[str]) -> Iterator[str]:
    """The two lines above the table's rows."""
    base = baseline(backends)
    above = f"{'(ms for one step)':45}"
    below = f"{'model':16}{'ranks':>5}{'gradients':>14}{'rounds':>10}"
    for name in (ALONE, *backends):
        columns = f"{'time':>12}{'cpu':>10}"
        if name not in (ALONE, base):
            columns += f"{'vs ' + base:>12}"
        above += f"{name:>12}".ljust(len(columns))
        below += columns
    yield above.rstrip()
    yield below


def line(row: dict[str, Any]) -> str:
    """One of the table's rows, from `summarise`."""
    gradients = size_text(row["gradient_bytes"])
    text = f"{row['model']:16}{row['ranks']:>5}{gradients:>14}{row['rounds']:>10}"
    base = baseline(list(row["ways"]))
    for name, figures in row["ways"].items():
        text += f"{figures['step_ms']:12.1f}{figures['cpu_ms']:10.1f}"
        if name not in (ALONE, base):
            text += f"{figures['speedup']:11.2f}x"
    return text
