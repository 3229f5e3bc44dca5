"""Flags of several commands: the numbers that they take, for argparse's `type`, read or refused in
a sentence; the link of a table of traffic; what a run is to leave for a CI system."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..record.limits import MOST_S
from ..record.runs.run_directory import PACKED_SUFFIX

if TYPE_CHECKING:
    from ..plan.traffic import Link
    from ..supervisor.ci import Ci

MOST = (1 << 63) - 1


def between(least: int, most: int, what: str) -> Callable[[str], int]:
    """Returns what reads a whole number within these bounds, which `what` tells."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
        return value

    return read


count = between(1, MOST, "a whole number from 1 on")
steps = between(1, MOST, "a number of steps from 1 on")
size_bytes = between(0, MOST, "a number of bytes")
rank = between(0, MOST, "the number of a rank")
pid = between(1, MOST, "the number of a process")
seed = between(0, MOST, "a whole number from 0 on")


def seconds(text: str) -> float:
    """A time that ends."""
    return _float(text, lambda value: 0 < value < MOST_S, "a number of seconds above 0")


def mebibytes(least: float, most: float) -> Callable[[str], float]:
    """Returns what reads a number of MiB within these bounds."""

    def read(text: str) -> float:
        what = f"a number of MiB from {least:g} to {most:.0f}"
        return _float(text, lambda value: least <= value <= most, what)

    return read


def _float(text: str, fits: Callable[[float], bool], what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not fits(value):
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
    return value


def add_link_flags(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """`--latency-us` and `--bandwidth-gbs`."""
    number = partial(_float, fits=lambda value: 0 <= value < math.inf, what="a number from 0 on")
    parser.add_argument(
        "--latency-us",
        type=number,
        default=10.0,
        metavar="US",
        help="for the times in the table of traffic: the latency between two ranks (default: 10)",
    )
    parser.add_argument(
        "--bandwidth-gbs",
        type=number,
        default=25.0,
        metavar="GB/S",
        help="the bandwidth between two ranks, in 10**9 bytes a second (default: 25)",
    )


def link_of(args: argparse.Namespace) -> Link:
    """The link that the flags describe."""
    from ..plan.traffic import Link

    if not args.bandwidth_gbs:
        raise UsageError("--bandwidth-gbs takes a number above 0")
    return Link(args.latency_us, args.bandwidth_gbs)


def add_ci(group: argparse._ArgumentGroup) -> None:
    """`--ci` and `--ci-artifact`."""
    group.add_argument(
        "--ci",
        action="store_true",
        help=(
            "for CI: no colour, annotations and a job summary in GitHub Actions, and the run "
            "packed into one file; breakpoint() does not stop ($CI alone changes nothing)"
        ),
    )
    group.add_argument(
        "--ci-artifact",
        type=Path,
        metavar="FILE",
        help=(
            "with --ci: the name of the packed file; `tui`, `report`, `stacks` and `logs` open it "
            f"(default: NAME{PACKED_SUFFIX} in the current directory)"
        ),
    )


def ci_of(args: argparse.Namespace) -> Ci | None:
    """Returns what those ask for. Raises UsageError."""
    path: Path | None = args.ci_artifact
    if args.ci:
        for flag, given in (("--break", args.breaks), ("--pdb", args.pdb), ("--tui", args.tui)):
            if given:
                raise UsageError(f"{flag} waits for somebody at a terminal; leave it out with --ci")
    if path is not None:
        if not args.ci:
            raise UsageError("--ci-artifact needs --ci")
        if path.is_dir():
            raise UsageError(f"--ci-artifact {path} is a directory; name a file, such as {path}/x")
        if not path.parent.is_dir():
            raise UsageError(f"--ci-artifact {path}: there is no directory {path.parent}")
    if not args.ci:
        return None
    from ..supervisor.ci import Ci  # with all reports

    return Ci(path and path.absolute(), Path.cwd())
