"""Makes dataclasses again of plain data, as JSON carries it, by the types of their fields.

The data come from another process or host, and may be damaged, or anybody's: a value that is not of
its field's type is refused, whatever becomes of it later.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..safe_files import finite, whole
from ..safe_text import clean

T = TypeVar("T")
WRONG = (ValueError, TypeError, KeyError)
"""The errors of data that are none of the kind."""
MOST_ITEMS = 100
"""Of a list, where nobody says how many may count."""


def made_of(kind: type[T], data: Any, most_text: int, most_items: int = MOST_ITEMS) -> T:
    """Returns the dataclass of which these data are the `asdict` or the `astuple`; fields that have
    a default may be missing, behind all others. Texts are made harmless, and cut at `most_text`,
    lists at `most_items`. Raises one of `WRONG` for what is none."""
    types = _types_of(kind)  # type: ignore[arg-type]
    if isinstance(data, list | tuple) and len(data) <= len(types):
        data = dict(zip(types, data, strict=False))
    if not isinstance(data, Mapping):
        raise TypeError(f"{data!r:.80} is no {kind.__name__}")
    most = most_text, most_items
    return kind(**{name: _value(types[name], value, most) for name, value in data.items()})


@functools.cache
def _types_of(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _value(kind: Any, value: Any, most: tuple[int, int]) -> Any:
    """`most`: of characters, and of items."""
    of = get_args(kind)
    if NoneType in of:
        return None if value is None else _value(of[of[0] is NoneType], value, most)
    if get_origin(kind) is Mapping and isinstance(value, Mapping):
        # The keys of JSON are texts.
        names = value if of[0] is str else map(int, value)
        found = (_value(of[1], one, most) for one in value.values())
        return dict(zip(names, found, strict=True))
    if of and get_origin(kind) is not Mapping and isinstance(value, list | tuple):
        return tuple(_value(of[0], one, most) for one in value[: most[1]])
    if is_dataclass(kind):
        return made_of(kind, value, *most)  # type: ignore[arg-type]
    if not of and issubclass(kind, Enum):
        return kind(value)
    # To Python a bool is a whole number, too.
    if isinstance(value, bool) is not (kind is bool) or not isinstance(
        value, (float, int) if kind is float else kind
    ):
        raise TypeError(f"{value!r:.80} is no {kind}")
    if kind is str:
        return clean(str(value), most[0])
    if kind is bool:
        return value
    number = whole(value) if isinstance(value, int) else finite(value)
    return float(number) if kind is float else number
