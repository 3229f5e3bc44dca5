"""Whether a run is a part of a job with more nodes than this supervisor sees, as far as its command
line and its environment say, and where they meet if that was said.

With `--head HOST:PORT` nodes meet that have no store in common. The job key, which lets them in, is
a secret that the user hands to all nodes, in a file or a variable: on a command line everybody on
the host could read it. What is sent is derived from it (`keys`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from ..record.safe_text import endpoint, whole_number

VARIABLE = "DISTDEBUG_JOB_KEY"
SHORTEST_KEY, LONGEST_KEY = 32, 4096
"""Characters of a key. Who records a handshake can try keys at leisure, so it may not be a word."""
HOW = (
    "make one with `(umask 077; python3 -c 'import secrets; print(secrets.token_hex(32))' "
    "> job.key)`, copy it to all nodes and give each of them --job-key job.key, or have its text "
    f"in {VARIABLE}"
)


class AgreedError(ValueError):
    """The flags name no place to meet, or no key; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """All nodes are told the same."""

    host: str
    port: int
    key: bytes = field(repr=False)


def place(text: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT` or `[IPV6]:PORT`. Raises AgreedError."""
    host, port = endpoint(text)
    plain = host.isascii() and host.isprintable() and " " not in host
    if not host or not plain or (":" in host and not text.startswith(f"[{host}]:")):
        raise AgreedError(f"--head {text}: it is HOST:PORT, such as node0:29600 or [fd00::1]:29600")
    if port is None:
        raise AgreedError(f"--head {text}: a port is a number from 1 to 65535")
    return host, port


def job_key(path: Path | None, environment: MutableMapping[str, str]) -> bytes:
    """The key in that file, or in the variable, which is taken out of the environment: no rank
    needs it. Raises AgreedError."""
    variable = environment.pop(VARIABLE, "")
    if path is not None:
        text, where = _content(path), f"--job-key {path}"
    elif variable:
        text, where = variable.encode("utf-8", "surrogateescape"), VARIABLE
    else:
        raise AgreedError(f"--head needs a key that all nodes share: {HOW}")
    key = text.strip()
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise AgreedError(f"{where}: a key has {SHORTEST_KEY} to {LONGEST_KEY} characters; {HOW}")
    return key


def _content(path: Path) -> bytes:
    """Reads a file that nobody else can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AgreedError(f"--job-key {path}: {reason}; {HOW}") from None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise AgreedError(f"--job-key {path}: it is no file")
        if about.st_mode & 0o077:
            raise AgreedError(
                f"--job-key {path}: others than its owner can read or write it; "
                f"chmod 600 it, or if others may have read it, {HOW}"
            )
        return file.read(LONGEST_KEY + 64)


MOST = 1 << 14
"""Nodes, where nobody has said how many there are."""
_SIZES = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
)
"""The variables that name this task, and the number of tasks: every task of the job has a
supervisor of its own."""
_WITHIN = ("LOCAL_RANK", "SLURM_STEP_ID", "SLURM_JOB_ID")
"""The variables that tell tasks of one number apart: several steps of Slurm may be one job of
torch's."""


@dataclass(frozen=True, slots=True)
class Several:
    """`fewest` to `most` supervisors take part. `interface`: where to listen, if that was said.
    `task`: what only this one of them may be, in words; `ranks`: how many it starts (0: not known);
    `agreed`: where they meet, if that was said; `guessed`: nobody has said that there are others,
    and its ranks may know better."""

    fewest: int
    most: int
    interface: str = ""
    task: str = ""
    ranks: int = 0
    agreed: Agreed | None = None
    guessed: bool = False


def perhaps(interface: str) -> Several:
    """Describes a command that may start anything: a script that starts one node's part of a job,
    say."""
    return Several(1, MOST, interface, guessed=True)


def of_tasks(environment: Mapping[str, str], interface: str = "") -> Several | None:
    """Describes a command that is started as one of several tasks, each below its own supervisor;
    None where this one is not."""
    for rank, size in _SIZES:
        count = whole_number(environment.get(size), 7) or 0
        if environment.get(rank, "") and count > 1:
            return Several(count, count, interface, task_of(environment))
    return None


def task_of(environment: Mapping[str, str]) -> str:
    """Names this task by all variables that say so: one task may start several ranks, and name them
    by RANK alone."""
    names = dict.fromkeys((*(rank for rank, _ in _SIZES), *_WITHIN))
    return " ".join(f"{name}={environment[name][:20]}" for name in names if environment.get(name))
