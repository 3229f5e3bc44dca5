"""The finding that ends a run, as each of its ranks reads it, and whether anybody is there who may
come to one."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """verdict.json: what every rank that can run Python raises. `text` is the finding's line."""

    kind: str
    text: str
    cause: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, value: object) -> Verdict | None:
        """None where it is damaged."""
        if not isinstance(value, dict) or not {"kind", "text"} <= value.keys():
            return None
        cause = value.get("cause")
        return cls(str(value["kind"]), str(value["text"]), None if cause is None else str(cause))


def is_live(path: Path) -> bool:
    """Whether the supervisor that made the directory (or its warden) still runs on this host."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False
