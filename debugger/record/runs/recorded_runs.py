"""The runs that were recorded below one folder: lists them, and removes old ones."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..safe_files.place import RunDirectoryError, reason
from .run_directory import BASE, LATEST, is_live, read_object, why_not_ours

_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One line of `distdebug runs`. `live`: a supervisor still holds it. `outcome` is "" while
    there is no report; `command` may be empty; `started_s` is Unix time."""

    path: Path
    started_s: float
    live: bool
    outcome: str
    command: tuple[str, ...]


def list_runs(base: Path = BASE) -> list[RunEntry]:
    """The runs below `base`, newest first; what is not ours is left out."""
    try:
        names = sorted((one for one in os.listdir(base) if _NAME.fullmatch(one)), reverse=True)
    except OSError:
        return []
    entries = []
    for name in names:
        path = base / name
        if path.is_symlink() or why_not_ours(path) is not None:
            continue
        run, report = read_object(path / "run.json"), read_object(path / "report.json")
        command = run.get("command")
        entries.append(
            RunEntry(
                path=path,
                started_s=_time_of(name),
                live=is_live(path),
                outcome=str(report.get("outcome", "")),
                command=tuple(map(str, command)) if isinstance(command, list) else (),
            )
        )
    return entries


def prune(base: Path = BASE, keep: int = 10) -> list[Path]:
    """Removes all but the newest `keep` runs below `base`, never a live one; returns what went.

    Raises RunDirectoryError when a directory cannot be removed.
    """
    if keep < 0:
        raise RunDirectoryError(f"the number of runs to keep is 0 or more, not {keep}")
    removed = []
    for entry in list_runs(base)[keep:]:
        if entry.live:
            continue
        try:
            shutil.rmtree(entry.path)
        except OSError as error:
            raise RunDirectoryError(f"cannot remove {entry.path}: {reason(error)}") from error
        removed.append(entry.path)
    latest = base / LATEST
    if removed and latest.is_symlink() and not latest.exists():
        with contextlib.suppress(OSError):
            latest.unlink()
    return removed


def _time_of(name: str) -> float:
    try:
        return datetime.strptime(name[:15], "%Y%m%d-%H%M%S").astimezone().timestamp()
    except ValueError:
        return 0.0
