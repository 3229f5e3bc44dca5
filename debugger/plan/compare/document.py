"""Shows what a comparison found, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...record.snapshot import Call
from ...record.wording import printable, ranks_text, site_text
from ..traffic import Amount, GroupRole, Traffic, aligned, bytes_text, role_text, span_text
from ..traffic import as_json as traffic_json
from .comparison import (
    BEFORE,
    ENDS,
    HARD,
    PARTED,
    STEPS,
    UNLIKE_ANY,
    Comparison,
    Difference,
    Pairing,
)

SCHEMA = "distdebug.compare/1"
MOST_PAIRINGS = 6
MOST_ROWS = 24

_WHAT = {
    "op": "another call",
    "group": "another group",
    "dtype": "another dtype",
    "reduce_op": "another reduce op",
    "root": "another root",
    "peer": "another peer",
    "tag": "another tag",
    "shape": "another size",
    "world": "a group that is the whole world in one of them",
    "line": "another line",
    "async": "waited for otherwise",
    ENDS[0]: "B makes no more calls",
    ENDS[1]: "A makes no more calls",
    STEPS: "another number of steps",
    BEFORE: "they differ before the calls that are on record",
    PARTED: "a call from the line of another one",
    UNLIKE_ANY: "no rank of B does what these do",
}


@dataclass(frozen=True, slots=True)
class Side:
    """A side of the comparison: where it lies, and whether it is a plan."""

    place: str
    is_plan: bool = False


def as_json(found: Comparison, sides: tuple[Side, Side]) -> dict[str, Any]:
    """The whole comparison. `a` and `b` are the two, in the order in which they were named."""
    first = found.first
    return {
        "schema": SCHEMA,
        "equal": found.equal,
        "by": "rank" if found.is_exact else "role",
        "a": _side(0, found, sides[0]),
        "b": _side(1, found, sides[1]),
        "first": None if first is None else _difference(first[1]),
        "pairings": [
            {
                "a_ranks": list(one.ranks),
                "b_ranks": list(one.other_ranks),
                "calls_alike": one.alike,
                "differences": [_difference(difference) for difference in one.differences],
            }
            for one in found.pairings
        ],
        "missing_in_a": list(found.missing[0]),
        "missing_in_b": list(found.missing[1]),
        "groups": list(found.groups),
    }


def _side(which: int, found: Comparison, side: Side) -> dict[str, Any]:
    return {
        "place": side.place,
        "plan": side.is_plan,
        "world_size": found.sizes[which],
        "ranks": found.seen[which],
        "traffic": traffic_json(found.tables[which]),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "kind": difference.kind,
        "step": difference.step,
        "times": [difference.times, difference.other_times] if difference.times else None,
        "after": _call(difference.after),
        "a": _made(difference.number, difference.one, difference.group),
        "b": _made(difference.other_number, difference.other, difference.other_group),
        **({"text": printable(difference.text)} if difference.text else {}),
    }


def _made(number: int, call: Call | None, group: str) -> dict[str, Any]:
    made = _call(call) or {"call": None, "location": None}
    return {"number": number, "group": group or None, **made}


def _call(call: Call | None) -> dict[str, Any] | None:
    if call is None:
        return None
    site = call.site
    return {
        "call": str(call.signature),
        "location": None
        if site is None
        else {"file": site.file, "line": site.line, "function": site.function},
    }


def lines(found: Comparison, sides: tuple[Side, Side]) -> Iterator[str]:
    """The comparison for people: the first difference, the others, then counts and bytes."""
    for name, side, size, seen in zip("AB", sides, found.sizes, found.seen, strict=True):
        what = "plan of" if side.is_plan else "run of"
        part = f", {seen:,} of them seen" if seen != size else ""
        yield f"  {name}: {what} {size:,} ranks{part}   {side.place}"
    differing = [one for one in found.pairings if one.differences]
    if found.equal:
        yield f"EQUAL  {_compared(found)}"
    else:
        yield f"DIFFERENT  {_compared(found)}"
        for one in differing[:MOST_PAIRINGS]:
            yield from _pairing(one, found.is_exact)
        if len(differing) > MOST_PAIRINGS:
            yield f"  ... and {len(differing) - MOST_PAIRINGS} more in the JSON"
        same = [one for one in found.pairings if not one.differences]
        if same:
            ranks = [rank for one in same for rank in one.other_ranks]
            yield f"  {ranks_text(ranks)} of B: no difference"
    for name, missing in zip("AB", found.missing, strict=True):
        if missing:
            yield f"  not in {name}: {ranks_text(missing)}"
    for sentence in found.groups:
        yield f"  {sentence}"
    yield from _counts(found.tables)


def _compared(found: Comparison) -> str:
    if found.is_exact:
        return "each rank compared with the rank of its number"
    return "ranks compared by their places: first, last and inner ones of each group"


def _pairing(pairing: Pairing, exact: bool) -> Iterator[str]:
    ordered = sorted(pairing.differences, key=lambda one: not one.is_hard)
    mine, theirs = ranks_text(pairing.ranks), ranks_text(pairing.other_ranks)
    who = theirs if exact else f"{theirs} of B, as {mine} of A"
    who = who if pairing.other_ranks else f"{mine} of A"
    yield f"  {who}: {_WHAT.get(ordered[0].kind, ordered[0].kind)}"
    for place, one in enumerate(ordered):
        if place:
            yield f"    also {_WHAT.get(one.kind, one.kind)}:"
        yield from _told(one)


def _told(one: Difference) -> Iterator[str]:
    if one.kind == STEPS:
        yield f"    A {one.times:,} times, B {one.other_times:,} times the same step"
        return
    if one.kind == PARTED:
        yield f'    {printable(one.text)}, from #{one.number} of group "{one.group}" on'
    if one.kind in (PARTED, UNLIKE_ANY):
        return
    step = f" (step {one.step})" if one.step is not None else ""
    if one.after is not None and one.kind in (*HARD, *ENDS):
        yield f"    both       {_call_text(one.after)}"
    for name, call, number, group in (
        ("A", one.one, one.number, one.group),
        ("B", one.other, one.other_number, one.other_group),
    ):
        within = f' in group "{group}"' if one.kind in ("group", "world") else ""
        shown = _call_text(call, within) + (step if call is not None else "")
        yield f"    {name} #{number:<7} {shown}"


def _call_text(call: Call | None, within: str = "") -> str:
    if call is None:
        return "no further call"
    where = f"   {site_text(call.site)}" if call.site is not None else ""
    return f"{printable(str(call.signature))}{within}{where}"


def _counts(tables: tuple[Traffic, Traffic]) -> Iterator[str]:
    """Rows of group and op whose counts or bytes differ; sizes of groups are shown, not
    compared."""
    sides: list[dict[tuple[str, str], list[tuple[GroupRole, Amount]]]] = []
    for table in tables:
        side: dict[tuple[str, str], list[tuple[GroupRole, Amount]]] = {}
        for row in table.rows:
            side.setdefault((row.role.name, row.op), []).append((row.role, row.whole))
        sides.append(side)
    cells = [("group", "op", "calls A", "calls B", "bytes A", "bytes B")]
    alike = 0
    for key in sorted({*sides[0], *sides[1]}):
        one, other = (_cells(side.get(key, ()), table) for side, table in
                      zip(sides, tables, strict=True))  # fmt: skip
        if one[1:] == other[1:]:
            alike += 1
            continue
        name = one[0] if one[0] == other[0] else " / ".join(filter(None, (one[0], other[0])))
        cells.append((name, key[1], one[1], other[1], one[2], other[2]))
    total = ", ".join(
        f"{name} {sum(row.whole.total_calls for row in table.rows):,} calls and "
        f"{bytes_text(sum(row.whole.total_bytes for row in table.rows))}"
        for name, table in zip("AB", tables, strict=True)
    )
    yield f"all ranks together: {total}"
    if len(cells) == 1:
        yield "  calls and bytes of each rank are the same, for every group and op"
        return
    yield "  of each rank, where they differ:"
    shown = cells[: MOST_ROWS + 1]
    yield from aligned(shown)
    if len(cells) > len(shown):
        yield f"  ... and {len(cells) - len(shown)} more in the JSON"


def _cells(found: Sequence[tuple[GroupRole, Amount]], table: Traffic) -> tuple[str, str, str]:
    """The groups, the calls and the bytes of one side; "" and "-" where it has none."""
    if not found:
        return "", "-", "-"
    names = ", ".join(role_text(role, table.groups.get(role, 0)) for role, _ in found[:2])
    calls = (min(one.calls[0] for _, one in found), max(one.calls[1] for _, one in found))
    size = (min(one.size_bytes[0] for _, one in found), max(one.size_bytes[1] for _, one in found))
    return names, span_text(calls, str), span_text(size, bytes_text)
