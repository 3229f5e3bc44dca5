"""The number of ranks that a torchrun command line starts, and its numbers that contradict that."""

from __future__ import annotations

import argparse
import os
import re

from ..errors import UsageError

_DEVICE_COUNTS = ("auto", "cpu", "gpu", "xpu")
_STANDARD_STREAMS = re.compile(r"[0-3]|\d+:[0-3](,\d+:[0-3])*")
_LARGEST_PORT = 65535


def expected_world_size(torchrun: argparse.Namespace) -> int | None:
    """Return the number of ranks of a single-node run, None where it cannot be known.

    It cannot be known on several nodes, for "auto", "gpu" and other devices (counting them
    needs torch), and for "cpu" on a machine that lets this process use some of its CPUs only,
    where releases of torch differ.
    """
    if node_range(torchrun.nnodes) != (1, 1):
        return None
    if torchrun.nproc_per_node == "cpu":
        cpus = os.cpu_count()
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus
        return cpus if cpus == usable else None
    return rank_count(torchrun.nproc_per_node, "--nproc-per-node")


def rank_count(value: str, flag: str) -> int | None:
    """Return the ranks per node that `value` asks for, None for the name of a device.

    Raises:
        UsageError: not a positive number; for `-n`, also an unknown word. (`--nproc-per-node`
            takes the names of devices that torch's extensions register.)
    """
    if re.fullmatch(r"[+-]?\d+", value):
        if int(value) < 1:
            raise UsageError(f"{flag} {value}: at least 1 rank is needed")
        return int(value)
    known = value in _DEVICE_COUNTS or (flag != "-n" and re.fullmatch(r"[a-z]\w+", value))
    if not known:
        raise UsageError(f"{flag} {value!r}: a number of ranks, or {', '.join(_DEVICE_COUNTS)}")
    return None


def node_range(nnodes: str) -> tuple[int, int]:
    """Return the (fewest, most) nodes of torchrun's `--nnodes`, written "2" or "1:4".

    Raises:
        UsageError: not of that form, or not 1 <= fewest <= most.
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", nnodes)
    if match:
        fewest = int(match[1])
        most = int(match[2] or match[1])
        if 1 <= fewest <= most:
            return fewest, most
    raise UsageError(f"--nnodes {nnodes!r}: a number of nodes, or a range such as 1:4")


def check_numbers(torchrun: argparse.Namespace) -> None:
    """Raise UsageError where a number contradicts another, before any rank is started."""
    ranks = rank_count(torchrun.nproc_per_node, "--nproc-per-node")
    _, most_nodes = node_range(torchrun.nnodes)
    node_rank: int = getattr(torchrun, "node_rank", 0)
    if not 0 <= node_rank < most_nodes:
        raise UsageError(f"--node-rank {node_rank}: --nnodes {torchrun.nnodes} has no such node")
    port: int | None = getattr(torchrun, "master_port", None)
    if port is not None and not 0 <= port <= _LARGEST_PORT:
        raise UsageError(f"--master-port {port}: a port is a number from 0 to {_LARGEST_PORT}")
    if torchrun.max_restarts < 0:
        raise UsageError(f"--max-restarts {torchrun.max_restarts}: it cannot be negative")
    if torchrun.local_ranks_filter:
        shown = torchrun.local_ranks_filter.split(",")
        if not all(re.fullmatch(r"\s*\d+\s*", rank) for rank in shown):
            raise UsageError(
                f"--local-ranks-filter {torchrun.local_ranks_filter!r}: "
                "ranks separated by commas, such as 0,2"
            )
        _check_ranks("--local-ranks-filter", shown, ranks)
    for flag in ("redirects", "tee"):
        streams: str = getattr(torchrun, flag)
        if not _STANDARD_STREAMS.fullmatch(streams):
            raise UsageError(f"--{flag} {streams!r}: 0 to 3, or pairs rank:stream such as 0:1,1:2")
        if ":" in streams:
            _check_ranks(f"--{flag}", [pair.split(":")[0] for pair in streams.split(",")], ranks)


def _check_ranks(flag: str, named: list[str], ranks: int | None) -> None:
    absent = [int(rank) for rank in named if ranks is not None and int(rank) >= ranks]
    if absent:
        raise UsageError(
            f"{flag} names rank {absent[0]}, but the node has {ranks} ranks (0 to {ranks - 1}); "
            "raise -n or leave it out"
            if ranks and ranks > 1
            else f"{flag} names rank {absent[0]}, but the node has rank 0 only; raise -n"
        )
