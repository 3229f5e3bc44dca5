"""Reads a report.json back. It may come from another machine, or not be a report at all.

Apart from the code that builds one, so that showing a report does not load the diagnosis.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..record.limits import MOST_RANKS
from ..record.safe_files import MOST_JSON_BYTES, MOST_WHOLE, TooCostly, parsed, read_regular
from ..record.safe_text import clean

SCHEMA = "distdebug.report/1"

Document = dict[str, Any]

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
_FIELDS_OF_FINDING: dict[str, type] = {
    "kind": str,
    "severity": str,
    "proven": bool,
    "message": str,
    "culprits": list,
}


def load(path: Path) -> Document | None:
    """The report in the file, every string in it safe to print; None where there is no file.

    Raises UsageError for what is not a report of this version of distdebug.
    """
    try:
        raw = read_regular(path, MOST_JSON_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MOST_JSON_BYTES:
        raise UsageError(f"{path} is larger than {MOST_JSON_BYTES >> 20} MiB: it is no report")
    try:
        document = parsed(raw)
    except TooCostly:
        raise UsageError(f"{path} would take too much memory: it is no report") from None
    except ValueError:
        raise UsageError(f"{path} is not a report of distdebug: it is not JSON") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, str) and schema.startswith("distdebug.report/") and schema != SCHEMA:
        raise UsageError(
            f"{path} was written by another version of distdebug ({clean(schema, 40)}; "
            f"this is {SCHEMA})"
        )
    if schema != SCHEMA:
        raise UsageError(f"{path} is not a report of distdebug")
    harmless: Document = _harmless(document)
    if problem := _problem(harmless):
        raise UsageError(f"{path} is damaged: {problem}")
    if not 0 <= harmless["world_size"] <= MOST_RANKS:
        raise UsageError(f"{path} is damaged: no run has that many ranks")
    return harmless


def check_replaceable(path: Path, flag: str, first: str, *, fails: str, foreign: str) -> None:
    """Raises UsageError where the file that `flag` names has no directory, cannot be looked into
    (it "cannot be `fails`"), or is there and does not begin with `first`, as one of ours does (it
    "`foreign`")."""
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no directory {path.absolute().parent}")
    try:
        start = read_regular(path, len(first)) if os.path.lexists(path) else b""
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be {fails}: {error.strerror}") from error
    if start and start != first.encode():
        raise UsageError(f"{flag} {path} is there already, and {foreign}")


def received(value: Any) -> Document | None:
    """A report that another supervisor of the job has made, every string in it safe to print; None
    for what is none."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        return None
    harmless: Document = _harmless({"off": [], **value})
    return None if _problem(harmless) else harmless


def _problem(document: Document) -> str | None:
    """Tells what makes this no report that can be read field by field; None where nothing does."""
    for field, kind in _FIELDS.items():
        if not isinstance(document.get(field), kind):
            return f"{field} is missing or of another type"
    for finding in document["findings"]:
        if not isinstance(finding, dict):
            return "a finding is of another type"
        for field, of_finding in _FIELDS_OF_FINDING.items():
            if not isinstance(finding.get(field), of_finding):
                return f"{field} of a finding is missing or of another type"
        if not all(isinstance(rank, int) for rank in finding["culprits"]):
            return "culprits of a finding has what is no rank"
    if not all(isinstance(rank, dict) for rank in document["ranks"].values()):
        return "a rank is of another type"
    return None


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        for index, one in enumerate(value):  # in place: a copy would take as much memory again
            value[index] = _harmless(one)
        return value
    if isinstance(value, dict):
        return {clean(key): _harmless(value.pop(key)) for key in list(value)}
    if isinstance(value, int | float) and not abs(value) < MOST_WHOLE:
        return None  # JSON as Python reads it has infinities, and numbers that no float can hold
    return value
