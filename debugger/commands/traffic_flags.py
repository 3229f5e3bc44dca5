"""The flags of the link that the times of a table of traffic are for."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from ..plan.traffic.costs import Link


def add_link_flags(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """`--latency-us` and `--bandwidth-gbs`."""
    parser.add_argument(
        "--latency-us",
        type=_number,
        default=10.0,
        metavar="US",
        help="time of an empty message between two ranks, for the table of traffic (default: 10)",
    )
    parser.add_argument(
        "--bandwidth-gbs",
        type=_number,
        default=25.0,
        metavar="GB/S",
        help="10**9 bytes that pass between two ranks in a second (default: 25)",
    )


def link_of(args: argparse.Namespace) -> Link:
    """The link that the flags describe."""
    from ..plan.traffic.costs import Link

    if not args.bandwidth_gbs:
        raise UsageError("--bandwidth-gbs takes a number above 0")
    return Link(args.latency_us, args.bandwidth_gbs)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise UsageError(f"--latency-us and --bandwidth-gbs take a number, not {text!r}")
    return found
