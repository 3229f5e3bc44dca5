"""Frozen records that are made quickly: with one look at 16,384 ranks there are 65,536 of them.

A frozen dataclass sets each of its fields by a call, which takes several times as long as an
assignment. So what is read of a rank is an object of a twin first, which is not frozen, and becomes
one of the frozen class as soon as it is complete: before anybody else has it.
"""

from __future__ import annotations

from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


def thawed(frozen: type[_T]) -> type[_T]:
    """The twin of a frozen dataclass with slots: `made = twin(...); made.__class__ = frozen`."""
    rows: list[tuple[str, Any, Any]] = []
    for one in fields(frozen):  # type: ignore[arg-type]
        defaults = {"default": one.default, "default_factory": one.default_factory}
        given: dict[str, Any] = {
            name: value for name, value in defaults.items() if value is not MISSING
        }
        rows.append((one.name, one.type, field(**given)))
    return make_dataclass(frozen.__name__, rows, slots=True)
