"""Tells code of this tool from the user's, by the file: of this installation, or of another one
where a record was made. A folder of the user's that is called as ours is the user's."""

from __future__ import annotations

import os
import re

_PACKAGE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2))
_HERE = tuple(
    os.path.join(folder, "")
    for folder in (
        _PACKAGE,
        *(os.path.join(os.path.dirname(_PACKAGE), name) for name in ("distcore", "tui")),
    )
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:distdebug|distcore)[/\\]")


def is_own(file: str) -> bool:
    """Whether the file, or a line that begins with one, is of this tool."""
    return file.startswith(_HERE) or _INSTALLED.search(file) is not None
