"""Faults on purpose: which fault, on which rank, at which moment, and whether it happened.

In code: `faults.parse(SPEC)` reads a fault as `--inject` does, and says in a `SpecError` what is
wrong with it; `faults.read_file(PATH)` reads a plan file, `faults.draw(N, SEED, WORLD_SIZE)` gives
what `--inject-random` would; `faults.inject(SPEC)`, in a rank, makes it happen, as
`distdebug.inject` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actions import ACTIONS
    from .plan import Fault, Moment, Plan, When
    from .plan_file import read as read_file
    from .random_plan import draw
    from .spec import parse
    from .tokens import SpecError

_HOMES = {
    "ACTIONS": ("actions", "ACTIONS"),
    "Fault": ("plan", "Fault"),
    "Moment": ("plan", "Moment"),
    "Plan": ("plan", "Plan"),
    "SpecError": ("tokens", "SpecError"),
    "When": ("plan", "When"),
    "draw": ("random_plan", "draw"),
    "parse": ("spec", "parse"),
    "read_file": ("plan_file", "read"),
}
"""The place of each public name: a run without faults loads none of it."""
__all__ = [*_HOMES, "inject"]


def inject(spec: str) -> None:
    """Asks for a fault, as `distdebug.inject` does."""
    from .. import inject as ask

    ask(spec)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found = globals()[name] = getattr(import_module(f".{module}", __name__), attribute)
    return found
