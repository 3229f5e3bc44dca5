"""JSON from files and sockets that others write: an object, or nothing."""

from __future__ import annotations

import json
from typing import Any


def object_of(text: bytes) -> dict[str, Any]:
    """The JSON object in this text; empty for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
