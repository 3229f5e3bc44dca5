"""Makes directories that no other user of the machine can read, or swap for one of their own."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from datetime import datetime
from pathlib import Path


class RunDirectoryError(Exception):
    """The directory cannot be used; the message is one sentence for the user."""


def check_parent(parent: Path) -> None:
    """Others must not be able to swap the run directory for one of their own."""
    try:
        found = os.stat(parent)
    except FileNotFoundError:
        return  # made by us, below
    if not stat.S_ISDIR(found.st_mode):
        raise RunDirectoryError(f"{parent} is not a directory; choose another with --run-dir")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise RunDirectoryError(
            f"every user may replace files in {parent} (world-writable, no sticky bit); "
            "choose another place with --run-dir"
        )


def check_own(path: Path) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise RunDirectoryError(f"{path} is a symbolic link; name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise RunDirectoryError(f"{path} is not a directory; choose another with --run-dir")
    if found.st_uid != os.geteuid():
        raise RunDirectoryError(f"{path} belongs to another user; choose another with --run-dir")


def make_explicit(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        check_own(path)
        if any(path.iterdir()):
            raise RunDirectoryError(
                f"the run directory {path} is not empty; name one that is empty or does not exist"
            ) from None
        path.chmod(0o700)


def make_base(base: Path) -> None:
    base.parent.mkdir(parents=True, exist_ok=True)
    try:
        base.mkdir(mode=0o700)
    except FileExistsError:
        check_own(base)
        check_parent(base)
    else:
        with suppress(OSError):  # it is in nobody's commit
            (base / ".gitignore").write_text("*\n")


def make_new(base: Path) -> Path:
    for _ in range(100):
        moment = datetime.now().astimezone()
        path = base / f"{moment:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(base))


def reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
