"""Whether an action can happen to an op at all: a barrier has no data, a broadcast no reduce op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..record.ops import OPS, POINT_TO_POINT, Operand
from .actions import Action, Family

_CONTRIBUTES_NOTHING = frozenset(op for op, row in OPS.items() if row.inputs is Operand.NONE)
_WITHOUT_DATA = _CONTRIBUTES_NOTHING - POINT_TO_POINT

_HAVE: dict[str, frozenset[str]] = {
    "shape": frozenset(OPS) - _WITHOUT_DATA,
    "dtype": frozenset(OPS) - _WITHOUT_DATA,
    "reduce_op": frozenset(op for op, row in OPS.items() if row.reduces),
    "root": frozenset(op for op, row in OPS.items() if row.root),
    "split": frozenset({"all_to_all_single"}),
    "tag": POINT_TO_POINT,
    "peer": POINT_TO_POINT,
    "group": frozenset(OPS),
}
"""The ops that have what `change` changes."""
_WORDS = {"reduce_op": "reduce op", "split": "list of splits"}


def misfit(action: Action, arguments: Mapping[str, Any], op: str) -> tuple[str, list[str]] | None:
    """Tells why the action cannot happen at a call of this op, and the ops where it can; None: it
    can."""
    if action.name == "change":
        what = arguments["what"]
        if op in _HAVE[what]:
            return None
        return f"{op} has no {_WORDS.get(what, what)}", _ops(f"ops with a {what}", _HAVE[what])
    contributes = arguments.get("in") == "data" and action.family is Family.DATA
    if contributes and op in _CONTRIBUTES_NOTHING:
        fit = frozenset(OPS) - _CONTRIBUTES_NOTHING
        return f"a rank contributes no data to {op}", _ops("ops with data", fit)
    return None


def _ops(what: str, names: frozenset[str]) -> list[str]:
    return [f"{what}: {', '.join(op for op in OPS if op in names)}"]
