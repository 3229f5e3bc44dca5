"""The arguments of the kinds of `distdebug bench` that measure with ranks: read, or refused in a
sentence that says what to write instead."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import psutil

from ..errors import UsageError
from .comm_figures import size_text

TORCH_BACKENDS = ("tcp", "gloo")
"""On tensors in the memory of the CPU."""
GPU_BACKENDS = ("distcore_nccl", "nccl")
"""On tensors of a GPU; ours and torch's."""
MPI_BACKEND = "mpi"
BACKENDS = (*TORCH_BACKENDS, MPI_BACKEND, *GPU_BACKENDS)
TRANSPORTS = ("auto", "tcp", "shm")
MOST_MEASURED = 64
MOST_BYTES = 1 << 34
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}
_SIZE = re.compile(r"([0-9]{1,12})([KMG]?)(?:I?B)?", re.IGNORECASE)


def add_backends(parser: argparse.ArgumentParser, known: Sequence[str]) -> None:
    """The flag that `read_backends` reads."""
    parser.add_argument(
        "--backends",
        default="tcp,gloo",
        metavar="NAMES",
        help=f"of {', '.join(known)}; tcp/auto, tcp/tcp, tcp/shm: tcp with that "
        "DISTCORE_TRANSPORT (default: tcp,gloo); they are compared with gloo, or with the last",
    )


def add_ranks(parser: argparse.ArgumentParser, default: str) -> None:
    """The flag that `read_ranks` reads."""
    parser.add_argument(
        "-n",
        dest="ranks",
        default=default,
        metavar="RANKS",
        help=f"numbers of ranks (default: {default})",
    )


def add_budget(parser: argparse.ArgumentParser, default_s: float) -> None:
    """The flag that says how long the measuring may take."""
    parser.add_argument(
        "--budget",
        type=float,
        default=default_s,
        metavar="SECONDS",
        help="how long all of it may take; a smaller one makes fewer rounds, at least one "
        f"(default: {default_s:.0f})",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """The flag that all kinds have."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to FILE as well"
    )


def read_sizes(text: str, factor: int) -> list[int]:
    """Sizes in bytes, ascending, from "4,64K" or "4:64M", which is 4, 4 * factor, ... up to 64M.

    K, M and G are powers of 1024. Raises UsageError.
    """
    if factor < 2:
        raise UsageError(f"--factor {factor} leads nowhere; give 2 or more")
    sizes: set[int] = set()
    for part in text.split(","):
        first, colon, last = part.partition(":")
        size = read_size(first, f"--sizes {text}")
        end = read_size(last, f"--sizes {text}") if colon else size
        if size > end:
            raise UsageError(
                f"--sizes {text}: {first} is more than {last}; the smaller comes first"
            )
        while size <= end:
            sizes.add(size)
            size *= factor
    return sorted(sizes)


def read_size(text: str, where: str) -> int:
    """Reads one size in bytes, from "64K", which stands in the flag `where`. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{where}: {text!r} is no size; write bytes, or with K, M, G, such as 4, 64K or 4:64M"
        )
    size = int(match[1]) << _UNITS[match[2].upper()]
    if not 1 <= size <= MOST_BYTES:
        raise UsageError(f"{where}: {text} is not between 1 byte and 16G")
    return size


def read_ranks(text: str) -> list[int]:
    """Numbers of ranks, from "2,4,8". Raises UsageError."""
    ranks: list[int] = []
    for part in _distinct(text, "-n"):
        if not (part.isascii() and part.isdigit() and 2 <= int(part[:9]) <= MOST_MEASURED):
            raise UsageError(
                f"-n {text}: {part!r} is no number of ranks from 2 to {MOST_MEASURED}; "
                "write them as 2,4,8"
            )
        ranks.append(int(part))
    return ranks


def read_names(text: str, flag: str, known: Sequence[str]) -> list[str]:
    """Names of those `known`, from "all_reduce,barrier". Raises UsageError."""
    names = _distinct(text, flag)
    for name in names:
        if name not in known:
            raise UsageError(f"{flag} {text}: {name!r} is none of {', '.join(known)}")
    return names


def read_backends(text: str, known: Sequence[str] = BACKENDS) -> list[str]:
    """Backends of those `known`, from "tcp,tcp/tcp,gloo"; what follows a slash is tcp's transport.

    Raises UsageError.
    """
    backends = _distinct(text, "--backends")
    for name in backends:
        backend, slash, transport = name.partition("/")
        if backend not in known:
            raise UsageError(f"--backends {text}: {backend!r} is none of {', '.join(known)}")
        if slash and (backend != "tcp" or transport not in TRANSPORTS):
            raise UsageError(
                f"--backends {text}: {name!r} cannot be; only tcp takes a transport, one of "
                + ", ".join(f"tcp/{known}" for known in TRANSPORTS)
            )
    on_gpus = [name for name in backends if name in GPU_BACKENDS]
    if on_gpus and len(on_gpus) < len(backends):
        raise UsageError(
            f"--backends {text}: {', '.join(on_gpus)} can be compared with each other only, for "
            f"their tensors are on a GPU"
        )
    return backends


def _distinct(text: str, flag: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part:
            raise UsageError(f"{flag} {text!r} has an empty part; write names with single commas")
        if parts.count(part) > 1:
            raise UsageError(f"{flag} {text} has {part} twice; once is enough")
    return parts


def check_seconds(seconds: float, flag: str) -> None:
    """Raises UsageError where `seconds` are none, or more than a day."""
    if not 0 < seconds <= 86_400:
        raise UsageError(f"{flag} {seconds:g} is not between 0 and 86400 seconds")


def check_memory(size_bytes: int, ranks: int, buffers: int) -> None:
    """Raises UsageError where `ranks` times `buffers` of that size are more than is free."""
    needed, free = buffers * ranks * size_bytes, psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"{size_text(size_bytes)} on {ranks} ranks take about {size_text(needed)} of memory, "
            f"and {size_text(free)} are free; choose smaller sizes or fewer ranks"
        )


def check_file(file: Path | None) -> None:
    """Raises UsageError where it cannot be written after all the measuring."""
    if file is not None and not file.absolute().parent.is_dir():
        raise UsageError(f"{file.parent} is not a directory; name a file in one that is")
