"""The report's words on a plan alone: what could not be decided, which ranks do the same, how much
was planned. A run has none of it.

In report.json: `undecided` (`file`, `line`, `function`, `what`, `ranks`), `classes` (`ranks` that
do what rank `as` does, and how many `calls` each makes) and `plan` (`ranks`, `of`, `cores`,
`seconds`, `steps`, `unknown`: ranks of which not all is known, with the reason).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..record.wording import counted, ranks_text, spans, verb

MOST_CLASSES = 8
MOST_UNDECIDED = 12


def is_plan(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("plan"), Mapping)


def notices(document: Mapping[str, Any], most: int = MOST_UNDECIDED) -> Iterator[tuple[str, str]]:
    """(word, sentence) for each undecided place, and for ranks of which not all is known."""
    if not is_plan(document):
        return
    rows = document.get("undecided", ())
    for row in rows[:most]:
        where = f"{os.path.basename(row['file'])}:{row['line']} in {row['function']}"
        yield "undecided: ", f"{row['what']} at {where} ({ranks_text(row['ranks'])})"
    if len(rows) > most:
        yield "undecided: ", f"... and {len(rows) - most} more places in report.json"
    for row in document["plan"]["unknown"]:
        where = f" at {os.path.basename(row['file'])}:{row['line']}" if row.get("file") else ""
        yield "not known: ", f"what {ranks_text(row['ranks'])} would do{where}: {row['why']}"


def failed(document: Mapping[str, Any]) -> str:
    """Why a plan without a finding is no good; "" for a run."""
    if not is_plan(document):
        return ""
    lost = _lost(document["plan"])
    if not lost:
        return "no rank's program was planned"
    return f"not all is known of {ranks_text(lost)}, and nothing that is known is wrong"


def last_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yields which ranks do the same, and how much was planned."""
    if not is_plan(document):
        return
    if same := alike(document, MOST_CLASSES):
        yield f"alike: {same}"
    if orders := document["plan"].get("orders"):
        yield f"orders: {orders_text(orders)}"
    yield closing(document)


def orders_text(orders: Mapping[str, Any]) -> str:
    """`ranks are stuck in 2 of at least 6`."""
    if orders["depends"]:
        done = counted(orders["planned"], "order")
        stuck = "ranks are stuck in the last" if orders["faults"] else "nobody is stuck"
        return f"what ranks do depends on the order; of {done} that were planned {stuck}"
    least = "" if orders["exact"] else "at least "
    total = f"{least}{orders['total']:,}"
    if not orders["stuck"]:
        return f"nobody is stuck in {total}"
    return (
        f"ranks {'are' if orders['faults'] else 'may be'} stuck in {orders['stuck']:,} of {total}"
    )


def alike(document: Mapping[str, Any], most: int) -> str:
    """`ranks 0-1015 as rank 0 make 12 calls each; ...`; "" where no ranks do the same."""
    classes = document.get("classes", ())
    if all(len(row["ranks"]) < 2 for row in classes):
        return ""
    more = len(classes) - most
    shown = [*map(_class_text, classes[:most]), *([f"and {more} more classes"] if more > 0 else [])]
    return "; ".join(shown)


def closing(document: Mapping[str, Any]) -> str:
    """`planned 1,024 ranks on 2 cores in 3 min 40 s; 2 steps; nothing was left undecided`."""
    plan = document["plan"]
    ranks, of = plan["ranks"], plan["of"]
    count = counted(ranks, "rank") if ranks == of else f"{ranks:,} of {of:,} ranks"
    parts = [f"planned {count} on {counted(plan['cores'], 'core')} in {_time(plan['seconds'])}"]
    if plan.get("steps"):
        parts.append(counted(plan["steps"], "step"))
    places = len(document.get("undecided", ()))
    if not places:
        parts.append("nothing was left undecided")
    else:
        parts.append(f"{places} place{'s were' if places != 1 else ' was'} left undecided")
    if plan["unknown"]:
        parts.append(f"not all is known of {ranks_text(_lost(plan))}")
    return "; ".join(parts)


def _lost(plan: Mapping[str, Any]) -> list[int]:
    """The ranks of which not all is known."""
    return sorted({rank for row in plan["unknown"] for rank in row["ranks"]})


def name_of(row: Mapping[str, Any]) -> str:
    """`rank 3`, or `ranks 0-1015 as rank 0`."""
    ranks: Sequence[int] = row["ranks"]
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {spans(ranks)} as rank {row['as']}"


def _class_text(row: Mapping[str, Any]) -> str:
    calls = row["calls"]
    made = verb(row["ranks"], "makes", "make")
    each = " each" if len(row["ranks"]) > 1 else ""
    return f"{name_of(row)} {made} {calls} call{'s' if calls != 1 else ''}{each}"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"
