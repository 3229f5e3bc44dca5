"""Python's warnings, which are shown as before, are in the rank's log as well."""

from __future__ import annotations

import warnings

from ...record.log_file import at_least
from . import rank_log

_SHOWS = "_showwarnmsg_impl"
"""Private, for a replaced `warnings.showwarning` is not told the object that a ResourceWarning is
about, and Python would no longer say where it was allocated. `catch_warnings` keeps this name, too,
in all versions of Python that have it."""


def observe() -> None:
    """Begins; a program that replaces `warnings.showwarning` itself takes the warnings away
    again."""
    original = getattr(warnings, _SHOWS, None)
    if original is None:
        return

    def show(message: warnings.WarningMessage) -> None:
        original(message)
        if message.file is None and at_least("warning", rank_log.file_level()):
            place = rank_log.at((message.filename, message.lineno))
            text = {"category": message.category.__name__, "message": str(message.message), **place}
            rank_log.put("python_warning", "warning", text, printed=True)

    setattr(warnings, _SHOWS, show)
