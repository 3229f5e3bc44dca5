"""Whether the checking layer may be put into a process that runs: one exact sentence where not.

All of it is read, before anything is touched; see `injection` for how it is done then.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..record import torch_versions
from ..system.proc import (
    DEAD_STATES,
    PROC,
    check_traceable,
    command_line,
    environment,
    executable,
    is_in_our,
    mapped,
    read_stat,
    read_status,
)
from .rights import needed

OLDEST_TORCH = (2, 14)
REMOTE_EXEC_FROM = (3, 14)
"""From this Python on, an interpreter can be asked to run a file (PEP 768)."""
_PYTHON = re.compile(r"cpython-3(\d+)(t?)d?-|libpython3\.(\d+)(t?)d?\.so|/python3\.(\d+)(t?)$")
_TORCH = "libtorch_python"


class NotInstallable(Exception):
    """The layer cannot be put into this process; the text says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process that the layer may be put into. `libraries`: the files that hold its interpreter
    and its C library, with where they are loaded; the executable itself has no place here."""

    pid: int
    python: tuple[int, int]
    executable: str
    libraries: tuple[tuple[str, int], ...] = ()
    by_remote_exec: bool = False


def target(pid: int, user: int | None = None, proc: Path = PROC) -> Target:
    """Returns what has to be known of this process. Raises NotInstallable."""
    stat = read_stat(pid, proc)
    if stat is None or stat.state in DEAD_STATES:
        raise NotInstallable("it has ended")
    if stat.state in "Tt":
        raise NotInstallable("it is stopped by a signal, or by a debugger: let it run first")
    try:
        maps, status = mapped(pid, proc), read_status(pid, proc)
        check_traceable(pid, proc)
    except PermissionError:
        raise NotInstallable(needed([pid], proc, user).replace("stacks", "it", 1)) from None
    except (OSError, ValueError):
        raise NotInstallable("it has ended") from None
    if not status:
        raise NotInstallable("it has ended")
    tracer = int(status.get("TracerPid", "0"))
    if tracer:
        raise NotInstallable(
            f"process {tracer} traces it already (a debugger, strace): end that first"
        )
    owner = int(status["Uid"].split()[1])
    mine = os.geteuid() if user is None else user
    if owner != mine:
        raise NotInstallable(
            f"it belongs to user {owner}, and this is user {mine}: it writes its record as that "
            "user, so run this as that user"
        )
    for kind, what in (("mnt", "files"), ("pid", "processes")):
        if not is_in_our(kind, pid, proc):
            raise NotInstallable(
                f"it is in a container that has its own {what}: run this inside that container"
            )
    places = loaded(maps)
    return _of_places(pid, places, proc)


def _of_places(pid: int, places: dict[str, int], proc: Path) -> Target:
    if any(os.path.basename(path).startswith("ld-musl") for path in places):
        raise NotInstallable(
            "its C library is musl, for which torch has no release to be tried with"
        )
    if any(map(_is_record, places)):
        raise NotInstallable("distdebug records it already")
    folders = [
        Path(path).parents[1] for path in places if os.path.basename(path).startswith(_TORCH)
    ]
    if not folders:
        raise NotInstallable("it has not loaded torch (yet)")
    version = torch_versions.of_package(folders[0])
    found = torch_versions.parsed(version)
    if found is None:
        raise NotInstallable(f"which torch it has cannot be read ({folders[0]}/version.py)")
    if found < OLDEST_TORCH:
        raise NotInstallable(
            f"its torch is {version}: groups that exist already can be observed from torch "
            f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} on, which has hooks around their calls"
        )
    python, threaded = _python(places)
    if threaded:
        raise NotInstallable("its Python has no GIL, which the record's writer relies on")
    program = executable(pid, proc)
    if program.endswith(" (deleted)"):
        raise NotInstallable("its Python was replaced since it was started (its file is gone)")
    if python >= REMOTE_EXEC_FROM and not _refuses_remote(pid, proc):
        return Target(pid, python, program, by_remote_exec=True)
    if python < (3, 10):
        raise NotInstallable(f"its Python is 3.{python[1]}: it takes 3.10 or newer")
    if shutil.which("gdb") is None:
        raise NotInstallable(
            "there is no gdb on this host, which it takes before Python 3.14: `apt install gdb`, "
            "or the like"
        )
    return by_gdb(pid, python, program, places)


def by_gdb(pid: int, python: tuple[int, int], executable: str, places: dict[str, int]) -> Target:
    """A process that gdb reaches, with the libraries of which it has to know the symbols."""
    libraries = [
        (path, start)
        for path, start in places.items()
        if re.match(r"libpython3\.|libc[.-]", os.path.basename(path))
    ]
    return Target(pid, python, executable, tuple(libraries))


def _python(places: dict[str, int]) -> tuple[tuple[int, int], bool]:
    """The version of its Python, and whether that has no GIL."""
    for path in places:
        found = _PYTHON.search(path)
        if found:
            minor = next(filter(None, found.group(1, 3, 5)))
            return (3, int(minor)), any(found.group(2, 4, 6))
    raise NotInstallable("which Python it runs cannot be told from what it has loaded")


def loaded(maps: list[str]) -> dict[str, int]:
    """The files that are loaded, and where their first bytes are."""
    found: dict[str, int] = {}
    for line in maps:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            start = int(fields[0].partition("-")[0], 16) - int(fields[2], 16)
            found.setdefault(fields[5], start)
    return found


def _is_record(path: str) -> bool:
    """Whether this is the record of a run that is there. A record takes its rank's name once that
    is known, and the kernel goes on to call it by the name that it was made with, and deleted."""
    name = path.removesuffix(" (deleted)")
    if not name.endswith(".flight"):
        return False
    return name == path or os.path.isdir(os.path.dirname(name))


def _refuses_remote(pid: int, proc: Path) -> bool:
    try:
        off = environment(pid, proc).get("PYTHON_DISABLE_REMOTE_DEBUG")
        return bool(off) or any("disable-remote-debug" in word for word in command_line(pid, proc))
    except OSError:
        return True
