"""The way of a message: from whom to whom, with which tag."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Path:
    """Ranks of the group."""

    source: int
    target: int
    tag: int
