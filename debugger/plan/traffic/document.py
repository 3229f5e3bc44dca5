"""The table of traffic as JSON, and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...record.wording import counted
from .table import Amount, GroupRole, Row, Span, Traffic

SCHEMA = "distdebug.traffic/1"
MOST_ROWS = 40


def as_json(traffic: Traffic) -> dict[str, Any]:
    """Returns what plan.json and `report --traffic --json` hold; times in microseconds."""
    return {
        "schema": SCHEMA,
        "world_size": traffic.world_size,
        "ranks": traffic.ranks,
        "link": {
            "latency_us": traffic.link.latency_us,
            "bandwidth_gbs": traffic.link.bandwidth_gbs,
        },
        "steps": {"times": traffic.steps, "calls": list(traffic.step_calls)},
        "busiest_rank_us": round(traffic.busiest_us, 3),
        "lost_calls": traffic.lost,
        "groups": [
            {"group": role.name, "size": role.size, "groups": count}
            for role, count in traffic.groups.items()
        ],
        "rows": [_row(row, traffic.groups) for row in traffic.rows],
    }


def _row(row: Row, groups: Mapping[GroupRole, int]) -> dict[str, Any]:
    return {
        "group": row.role.name,
        "size": row.role.size,
        "groups": groups.get(row.role, 0),
        "op": row.op,
        "ranks": row.ranks,
        "whole": _amount(row.whole),
        "step": None if row.step is None else _amount(row.step),
    }


def _amount(amount: Amount) -> dict[str, Any]:
    return {
        "calls": list(amount.calls),
        "bytes": list(amount.size_bytes),
        "total_calls": amount.total_calls,
        "total_bytes": amount.total_bytes,
        "link_bytes": {name: round(value) for name, value in amount.link_bytes.items()},
        "time_us": {name: round(value, 3) for name, value in amount.time_us.items()},
        "fastest": amount.fastest,
    }


def lines(traffic: Traffic) -> Iterator[str]:
    """The table for people."""
    a_step = traffic.steps > 0
    if not traffic.rows:
        yield "no call is on record"
        return
    what = "in one step" if a_step else "in the whole run"
    yield f"calls and bytes {what}, of each rank that makes them"
    if a_step:
        calls = span_text(traffic.step_calls, str)
        yield f"  a step is what repeats: {calls} call{'s' * (calls != '1')}, {traffic.steps} times"
    cells = [("group", "op", "calls", "bytes", "on its link", "takes", "by")]
    shown = [row for row in traffic.rows if row.step is not None] if a_step else traffic.rows
    for row in list(shown)[:MOST_ROWS]:
        amount = row.step if a_step and row.step is not None else row.whole
        by = amount.fastest
        cells.append(
            (
                role_text(row.role, traffic.groups.get(row.role, 0)),
                row.op,
                span_text(amount.calls, str),
                span_text(amount.size_bytes, bytes_text),
                bytes_text(amount.link_bytes[by]) if by else "-",
                time_text(amount.time_us[by]) if by else "-",
                by,
            )
        )
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row_cells in cells:
        parts = [
            f"{cell:<{width}}" if column < 2 or column == 6 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row_cells, widths, strict=True))
        ]
        yield ("  " + "   ".join(parts)).rstrip()
    if len(shown) > MOST_ROWS:
        yield f"  ... and {len(shown) - MOST_ROWS} more rows in the JSON"
    if a_step and (others := len(traffic.rows) - len(shown)):
        yield (
            f"  outside the steps: {_others(traffic)} ({others} more in the JSON)"
            if (others > 1)
            else f"  outside the steps: {_others(traffic)}"
        )
    yield (
        f"  on links of {traffic.link} the rank with the most takes "
        f"{time_text(traffic.busiest_us)} {'a step' if a_step else 'in all'}, one call after the "
        "other"
    )
    if traffic.lost:
        yield f"  no longer on record, and not counted: {counted(traffic.lost, 'call')}"


def _others(traffic: Traffic) -> str:
    row = next(row for row in traffic.rows if row.step is None)
    return f"{row.op} of {role_text(row.role, traffic.groups.get(row.role, 0))}"


def role_text(role: GroupRole, count: int = 0) -> str:
    """`mesh_tp (8 ranks) x 128`."""
    times = f" x {count:,}" if count > 1 else ""
    return f"{role.name} ({role.size:,} rank{'' if role.size == 1 else 's'}){times}"


def span_text(span: Span, text: Callable[[int], str]) -> str:
    """`4`, or `2 to 4` where ranks differ."""
    least, most = map(text, span)
    return least if least == most else f"{least} to {most}"


def bytes_text(count: float) -> str:
    """`512 B`, `1.5 KiB`, `2.0 GiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} TiB"


def time_text(time_us: float) -> str:
    """`12.0 us`, `1.5 ms`, `2.0 s`."""
    if time_us < 1000:
        return f"{time_us:.1f} us"
    return f"{time_us / 1e3:.1f} ms" if time_us < 1e6 else f"{time_us / 1e6:.1f} s"
