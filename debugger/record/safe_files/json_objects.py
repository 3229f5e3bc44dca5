"""JSON from files and sockets that others write: an object, or nothing.

A text of a few megabytes can stand for gigabytes of lists in lists. What a text would take in
memory is estimated before it is read.
"""

from __future__ import annotations

import json
from typing import Any

MOST_BYTES = 64 << 20
"""The most bytes of a file of ours that holds one JSON document."""
MOST_COST_BYTES = 160 << 20
"""The most memory for one document: the report of 16,384 ranks, or any other that is ours."""


class TooCostly(ValueError):
    """The text may be JSON, but would take more memory than a document of ours does."""


def cost_bytes(text: bytes) -> int:
    """Returns about how much memory the parsed text takes, at most."""
    return (
        2 * len(text)
        + 232 * text.count(b"{")
        + 72 * text.count(b"[")
        + 72 * text.count(b",")
        + 140 * text.count(b":")
    )


def parsed(text: bytes, most_cost_bytes: int = MOST_COST_BYTES) -> Any:
    """Reads a text as JSON. Raises ValueError where it is none, too deep or too costly."""
    if len(text) > MOST_BYTES or cost_bytes(text) > most_cost_bytes:
        raise TooCostly("it would take too much memory")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def object_of(text: bytes, most_cost_bytes: int = MOST_COST_BYTES) -> dict[str, Any]:
    """The JSON object in this text; empty for anything else."""
    if text.lstrip()[:1] != b"{":
        return {}
    try:
        value = parsed(text, most_cost_bytes)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
