"""A plan in a TOML file: `seed = 7`, and a `[[fault]]` with `spec = "kill(rank=1)"` for each."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .plan import Fault
from .spec import parse
from .tokens import nearest

MOST_BYTES = 1 << 22
_NAMES = ("seed", "fault")


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
        if name not in _NAMES:
            near = nearest(name, _NAMES)
            raise ValueError(f"it may have a seed and [[fault]] tables, but no {name!r}{near}")
    seed = table.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
        raise ValueError("its seed is a whole number from 0 on")
    rows = table.get("fault", [])
    if not isinstance(rows, list):
        raise ValueError("write [[fault]] with two brackets, once for each fault")
    if not rows:
        raise ValueError("it has no [[fault]]")
    faults = []
    for number, row in enumerate(rows):
        match row:
            case {"spec": str(spec), **others} if not others:
                faults.append(parse(spec, number, world_size, backend))
            case _:
                raise ValueError(
                    f'[[fault]] number {number + 1} has to have a spec = "kill(rank=1)", and '
                    "nothing else"
                )
    return faults, seed


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
