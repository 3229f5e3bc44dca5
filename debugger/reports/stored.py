"""Reads a report.json back. It may come from another machine, or not be a report at all.

Apart from the code that builds one, so that showing a report does not load the diagnosis.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..record.sanitize import clean

SCHEMA = "distdebug.report/1"

Document = dict[str, Any]

MOST_BYTES = 256 << 20

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "outcome": str,
    "exit_code": int,
    "world_size": int,
    "duration_s": (int, float),
    "command": list,
    "run_dir": str,
    "findings": list,
    "ranks": dict,
}


def load(path: Path) -> Document | None:
    """The report in the file, every string in it safe to print; None where there is no file.

    Raises UsageError for what is not a report of this version of distdebug.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MOST_BYTES:
        raise UsageError(f"{path} is larger than {MOST_BYTES >> 20} MiB: it is no report")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not a report of distdebug: it is not JSON") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, str) and schema.startswith("distdebug.report/") and schema != SCHEMA:
        raise UsageError(
            f"{path} was written by another version of distdebug ({clean(schema, 40)}; "
            f"this is {SCHEMA})"
        )
    if schema != SCHEMA:
        raise UsageError(f"{path} is not a report of distdebug")
    for field, kind in _FIELDS.items():
        if not isinstance(document.get(field), kind):
            raise UsageError(f"{path} is damaged: {field} is missing or of another type")
    harmless: Document = _harmless(document)
    return harmless


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_harmless(one) for one in value]
    if isinstance(value, dict):
        return {clean(key): _harmless(one) for key, one in value.items()}
    return value
