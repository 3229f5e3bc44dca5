"""What backends take beside time, each figure beside its bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distdebug.benchmarks import arguments as read
from distdebug.benchmarks import program
from distdebug.benchmarks.comm_figures import OPS, size_text
from distdebug.errors import UsageError
from tests.benchmarks.command_line import main

SCHEMA = "distdebug.bench.resources/1"
MOST_GROUPS = 1000
EPILOG = """\
Of a rank (the one that takes most): the memory it has for itself or shares with others, more than
before it joined, its tensors not counted; the processor time, of all its threads, that it spends
waiting in barrier; and how long it takes to make sub-groups of all ranks. Each backend has ranks of
its own. The bars are those of distcore on 2 cores, for what is measured by default.

examples:
  python -m tests.benchmarks.resources
  python -m tests.benchmarks.resources --backends tcp/tcp,tcp/shm -n 4 --largest 1M"""


@dataclass(frozen=True)
class Line:
    """One line of the table: where the figure is in a row of `resources_ranks`, what
    it is divided by for people, and the bar that it must stay below, in the same unit as that."""

    text: str
    part: str
    figure: str
    divisor: float
    digits: int
    bar: float | None = None


LINES = (
    Line("MiB, once it has joined", "memory_bytes", "joined", 1 << 20, 1),
    Line("MiB, at most during calls of all kinds", "memory_bytes", "peak", 1 << 20, 1, 64),
    Line("MiB, after them", "memory_bytes", "after", 1 << 20, 1, 64),
    Line("processor seconds of waiting", "wait_cpu_s", "barrier", 1, 3, 0.2),
    Line("seconds to make the sub-groups", "groups_s", "made", 1, 2, 5),
    Line("seconds to make and use them", "groups_s", "used", 1, 2),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    read.add_backends(parser, read.TORCH_BACKENDS)
    read.add_ranks(parser, "8")
    parser.add_argument(
        "--largest",
        default="64M",
        metavar="SIZE",
        help="calls are of so many bytes, and less (default: 64M)",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long a rank waits (default: 10)",
    )
    parser.add_argument(
        "--groups", type=int, default=64, help="how many sub-groups are made (default: 64)"
    )
    read.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, and write the file."""
    request = _request(args)
    read.check_file(args.json)
    described, lines = program.begin(
        [sys.executable, "-m", "tests.benchmarks.resources_ranks"], request
    )
    rows = list(lines)
    setting = {key: request[key] for key in ("ranks", "largest_bytes", "wait_s", "groups")}
    print("\n".join(table(rows, setting)))
    measured = {
        "schema": SCHEMA,
        **described,
        **setting,
        "bars": {
            f"{one.part}.{one.figure}": one.bar * one.divisor
            for one in LINES
            if one.bar is not None
        },
        "rows": rows,
    }
    program.write(args.json, measured)
    return 0


def _request(args: argparse.Namespace) -> dict[str, Any]:
    read.check_seconds(args.wait, "--wait")
    if not 1 <= args.groups <= MOST_GROUPS:
        raise UsageError(f"--groups {args.groups} is not between 1 and {MOST_GROUPS}")
    ranks = read.read_ranks(args.ranks)
    if len(ranks) != 1:
        raise UsageError(f"-n {args.ranks} are several numbers; one is measured")
    largest_bytes = read.read_size(args.largest, f"--largest {args.largest}")
    read.check_memory(largest_bytes, ranks[0], 4)
    return {
        "backends": read.read_backends(args.backends, read.TORCH_BACKENDS),
        "ops": list(OPS),
        "ranks": ranks[0],
        "largest_bytes": largest_bytes,
        "wait_s": args.wait,
        "groups": args.groups,
    }


def table(rows: Sequence[dict[str, Any]], setting: dict[str, Any]) -> Iterator[str]:
    """The figures for people."""
    yield (
        f"{setting['ranks']} ranks, calls up to {size_text(setting['largest_bytes'])}, "
        f"{setting['wait_s']:g} s of waiting, {setting['groups']} sub-groups; each of the rank "
        "that takes most"
    )
    yield f"{'':40}" + "".join(f"{row['backend']:>12}" for row in rows) + f"{'bar':>12}"
    for one in LINES:
        text = f"{one.text:40}"
        for row in rows:
            text += f"{row[one.part][one.figure] / one.divisor:12.{one.digits}f}"
        yield text if one.bar is None else f"{text}{f'< {one.bar:g}':>12}"


if __name__ == "__main__":
    raise SystemExit(main("resources"))
