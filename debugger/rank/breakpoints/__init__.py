"""Breakpoints: where a rank stops, and the prompt through which one talks to it."""

from __future__ import annotations

from collections.abc import Callable

POST_MORTEM = "DISTDEBUG_PDB"
BREAK = "DISTDEBUG_BREAK"
"""The places, one a line, with absolute names of files."""
Look = Callable[[], None]
LookOnce = Callable[[Look | None], None]
