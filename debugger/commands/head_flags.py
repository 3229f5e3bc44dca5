"""The other nodes of a job: what the launcher's flags say of them, and by `--head` and `--job-key`
where those meet that have no store in common."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..nodes.several import MOST, Agreed, AgreedError, Several, job_key, place

if TYPE_CHECKING:
    from ..launch.nodes_of_launcher import NodesOfLauncher  # `run --help` does without


def add(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    group.add_argument(
        "--head",
        metavar="HOST:PORT",
        help=(
            "where the supervisors of the job's nodes meet that have no store in common: the same "
            "on all nodes, and the one that is HOST listens (needs --job-key or DISTDEBUG_JOB_KEY)"
        ),
    )
    group.add_argument(
        "--job-key",
        type=Path,
        metavar="FILE",
        help="with --head: a secret that all nodes share, which only its owner can read",
    )


def of_launcher(nodes: NodesOfLauncher | None, interface: str) -> Several | None:
    """Returns what the launcher's flags say of the job's nodes; `interface`: where to listen, if
    that was said."""
    if nodes is None:
        return None
    return Several(nodes.fewest, nodes.most, interface, nodes.node, nodes.ranks)


def with_head(args: argparse.Namespace, several: Several | None) -> Several | None:
    """Returns what is known of the job's nodes, and where they meet if that was said. Raises
    UsageError."""
    if args.head is None:
        if args.job_key is not None:
            raise UsageError("--job-key is of --head HOST:PORT, which was not given")
        return several
    try:
        host, port = place(args.head)
        agreed = Agreed(host, port, job_key(args.job_key, os.environ))
    except AgreedError as error:
        raise UsageError(str(error)) from None
    several = several or Several(1, MOST, args.interface)
    return replace(several, agreed=agreed, guessed=False)
