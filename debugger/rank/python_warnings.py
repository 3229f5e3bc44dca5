"""Python's warnings, which are shown as before, are in the rank's log as well."""

from __future__ import annotations

import warnings
from typing import TextIO

from ..record.log_levels import at_least
from . import rank_log


def observe() -> None:
    """From now on; a program that replaces `warnings.showwarning` itself takes them away again."""
    original = warnings.showwarning

    def showwarning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        original(message, category, filename, lineno, file, line)
        if file is None and at_least("warning", rank_log.file_level()):
            place = rank_log.at((filename, lineno))
            text = {"category": category.__name__, "message": str(message), **place}
            rank_log.put("python_warning", "warning", text, printed=True)

    warnings.showwarning = showwarning
