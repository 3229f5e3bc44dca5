"""The runs that were recorded below one folder: lists them, and removes old ones."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..requests.supervision import is_live
from ..wording import counted
from .run_directory import (
    BASE,
    LATEST,
    RunDirectoryError,
    read_object,
    reason,
    run_names,
    why_not_ours,
)

MOST_GIB = 2.0
KEPT = 10
"""The number of runs to keep that is proposed where all take more than that."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A line of `distdebug runs`. `live`: a supervisor still holds it. `outcome` is "" while there
    is no report; `command` may be empty; `started_s` is Unix time."""

    path: Path
    started_s: float
    live: bool
    outcome: str
    command: tuple[str, ...]


def list_runs(base: Path = BASE) -> list[RunEntry]:
    """The runs below `base`, newest first; what is not ours is left out."""
    entries = []
    for name in run_names(base):
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


def prune(base: Path = BASE, keep: int = 10, *, without_findings: bool = False) -> list[Path]:
    """Removes all but the newest `keep` runs below `base`, never a live one; returns what went.
    `without_findings`: of those only what ended well and found nothing, and not the latest.

    Raises RunDirectoryError when a directory cannot be removed.
    """
    if keep < 0:
        raise RunDirectoryError(f"the number of runs to keep is 0 or more, not {keep}")
    removed = []
    for entry in list_runs(base)[keep:]:
        if entry.live:
            continue
        if without_findings:
            found = read_object(entry.path / "report.json").get("findings")
            newest = os.path.realpath(base / LATEST) == os.path.realpath(entry.path)
            if entry.outcome != "ok" or found or newest:
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


def size_bytes(path: Path) -> int:
    """Returns what the run takes on the disk; files that vanish meanwhile count as nothing."""
    total = 0
    for folder, _, files in os.walk(path):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, file)).st_blocks * 512
    return total


def kept_small(base: Path, keep: int | None) -> str:
    """Prunes the folder to `keep` runs, if that is asked for. Returns a sentence about what went;
    else about what there is to remove, if that is much; or ""."""
    if keep is not None:
        gone = len(prune(base, keep, without_findings=True))
        return (
            f"removed {counted(gone, 'run')} without findings (--keep-runs {keep})" if gone else ""
        )
    sizes = [size_bytes(base / name) / 2**30 for name in run_names(base)]
    rest = sizes[KEPT:]
    if sum(sizes) < MOST_GIB or not rest:
        return ""
    return (
        f"{base.name}/ takes {sum(sizes):.1f} GiB; `distdebug runs --prune {KEPT}` would remove "
        f"{counted(len(rest), 'run')} of {sum(rest):.1f} GiB"
    )


def _time_of(name: str) -> float:
    try:
        return datetime.strptime(name[:15], "%Y%m%d-%H%M%S").astimezone().timestamp()
    except ValueError:
        return 0.0
