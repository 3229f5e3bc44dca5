"""`--head HOST:PORT`: where nodes meet that have no store in common, and the key that lets them in.

The key is a secret that the user hands to all nodes, in a file or a variable: on a command line
everybody on the host could read it. What is sent is derived from it (`agreed_keys`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from ..record.safe_text import endpoint

VARIABLE = "DISTDEBUG_JOB_KEY"
FEWEST, MOST = 32, 4096
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
    if not FEWEST <= len(key) <= MOST:
        raise AgreedError(f"{where}: a key has {FEWEST} to {MOST} characters; {HOW}")
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
        return file.read(MOST + 64)
