"""Each rank looks with every heartbeat for what its supervisor asks: to stop at a breakpoint, to
raise the finding that ends the run. Here is also where it writes the stacks that it is asked for,
and whether a supervisor is there.

The files of breakpoints are those of `requests.breakpoints`, of which a rank that stops nowhere
loads nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...system import proc

STACK_SIGNAL = signal.SIGRTMAX - 4
"""On this signal a rank writes all its stacks to `stacks/<pid>.txt`, if its layer has registered
so (see `requests.stack_dump`)."""
FOLDER = "breakpoints"
STOP = re.compile(r"(x|0|[1-9]\d{0,8})-([1-9]\d{0,9})\.json")
_REQUEST = re.compile(r"break-[1-9]\d{0,9}")


def any_stop(directory: Path) -> bool:
    """Whether `stops` would find somebody; asked ten times a second."""
    return any(proc.exists(match[2]) for match in named(directory, STOP))


def named(directory: Path, names: re.Pattern[str]) -> list[re.Match[str]]:
    """Returns what is in the folder by such names."""
    try:
        return list(filter(None, map(names.fullmatch, os.listdir(directory / FOLDER))))
    except OSError:
        return []


def withdraw_request(directory: Path, pid: int) -> bool:
    """The process need not stop any more; whether it was asked to."""
    try:
        (directory / FOLDER / f"break-{int(pid)}").unlink()
    except OSError:
        return False
    return True


def is_asked(directory: Path, pid: int) -> bool:
    """Whether the process is asked to stop. One system call."""
    return os.path.lexists(directory / FOLDER / f"break-{int(pid)}")


def any_asked(directory: Path) -> bool:
    """Whether any process of the run is asked to stop."""
    return bool(named(directory, _REQUEST))


def dump_path(stacks: Path, pid: int) -> Path:
    """Returns the file into which the process writes its stacks."""
    return stacks / f"{pid}.txt"


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
