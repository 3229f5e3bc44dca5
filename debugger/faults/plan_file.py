"""A plan in a TOML file: `seed = 7`, and a `[[fault]]` with `spec = "..."` or its fields for each;
or `faults = ["...", "..."]`, a list of specs. `fault`, `faults` and `inject` are the same.

[[fault]]
action = "kill"
rank = 1
signal = "SEGV"
at = "all_reduce#5"
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .plan import Fault
from .spec import of_fields, parse
from .tokens import nearest

MOST_BYTES = 1 << 22
_NAMES = ("fault", "faults", "inject")


def read(
    path: Path, world_size: int | None = None, backend: str | None = None
) -> tuple[list[Fault], int | None]:
    """Returns the faults of the file, in its order, and its seed, or None.

    Raises OSError, SpecError for a fault that is wrong or impossible, and ValueError with one
    sentence for anything else.
    """
    with open(path, "rb") as file:
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB: it is no plan")
    try:
        table = _loads(raw.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    for name in table:
        if name not in ("seed", *_NAMES):
            near = nearest(name, ("seed", *_NAMES))
            raise ValueError(f"it may have a seed and [[fault]] tables, but no {name!r}{near}")
    seed = table.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
        raise ValueError("its seed is a whole number from 0 on")
    rows: list[Any] = []
    for name in (one for one in table if one in _NAMES):
        if not isinstance(table[name], list):
            raise ValueError(f"write [[{name}]] with two brackets, once for each fault")
        rows += [{"spec": row} if isinstance(row, str) else row for row in table[name]]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("each fault is a spec in quotes, or a table with two brackets: [[fault]]")
    if not rows:
        raise ValueError("it has no [[fault]]")
    faults = []
    for number, row in enumerate(rows):
        faults.append(parse(_spec(row, number), number, world_size, backend))
    return faults, seed


def _spec(row: Mapping[str, Any], number: int) -> str:
    spec = row.get("spec")
    if isinstance(spec, str):
        if len(row) > 1:
            other = next(name for name in row if name != "spec")
            raise ValueError(f"[[fault]] number {number + 1} has a spec; it takes no {other!r}")
        return spec
    try:
        return of_fields(row)
    except ValueError as error:
        raise ValueError(f"[[fault]] number {number + 1}: {error}") from None


def _loads(text: str) -> dict[str, Any]:
    """Python has a TOML parser from 3.11 on; before, `tomli` is the same one."""
    for name in ("tomllib", "tomli"):
        try:
            parser: Any = importlib.import_module(name)
        except ImportError:
            continue
        try:
            found: dict[str, Any] = parser.loads(text)
        except parser.TOMLDecodeError as error:
            raise ValueError(f"it is not TOML: {error}") from None
        return found
    raise ValueError(
        "Python 3.10 cannot read TOML by itself; install tomli (pip install tomli), or give each "
        "fault with --inject"
    )
