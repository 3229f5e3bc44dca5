"""The releases of torch that this tool is for, and the one that an interpreter has, found without
importing it."""

from __future__ import annotations

import re
from pathlib import Path

OLDEST = (2, 11)
NEWEST = (2, 15)
"""The newest that was tried. A newer one is taken as it is, after a sentence."""
_VERSION = re.compile(r"""^__version__\s*=\s*['"]([^'"]+)['"]""", re.MULTILINE)


def parsed(version: str) -> tuple[int, int] | None:
    """(2, 15) of "2.15.0+cu130"; None where it is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def too_old(version: str) -> str:
    """A sentence, where this release is older than the oldest that will do; else ""."""
    found = parsed(version)
    if found is None or found >= OLDEST:
        return ""
    return f"torch {version} is too old: distdebug needs torch {_text(OLDEST)} or newer"


def too_new(version: str) -> str:
    """A sentence, where this release is newer than all that were tried; else ""."""
    found = parsed(version)
    if found is None or found <= NEWEST:
        return ""
    return (
        f"torch {version} is newer than {_text(NEWEST)}, the newest that distdebug was tried with: "
        "what it does not know there it leaves alone, and the report says so"
    )


def of_package(folder: Path) -> str:
    """The version of the torch in this folder; "" where it does not say. Reads a file of it, and
    runs nothing."""
    try:
        found = _VERSION.search((folder / "version.py").read_text(errors="replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
