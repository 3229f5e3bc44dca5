"""Shows what a comparison of values found: as text, as JSON, and as a plot in SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from ...record.snapshot import CallSite
from ...record.values import QUANTITIES, RankValues, Value
from ...record.wording import printable, ranks_text, site_text
from .values import (
    Furthest,
    ValueDifference,
    ValuesComparison,
    bound_of_first_step,
    bound_of_jumps,
)

VALUES_SCHEMA = "distdebug.compare.values/1"
MOST_NOTES = 12
_HEADLINE = {"equal": "EQUAL  bit for bit", "rounding": "EQUAL  within rounding"}


@dataclass(frozen=True, slots=True)
class ValuesSide:
    """A run that is compared: its place, its ranks of how many, its steps, and whether the oldest
    of them are lost."""

    place: str
    ranks: int
    world_size: int
    steps: tuple[int, int]
    is_cut: bool

    @classmethod
    def of(cls, place: str, ranks: Mapping[int, RankValues]) -> ValuesSide:
        """Describes the values of these ranks."""
        steps = [step for one in ranks.values() for step in one.steps]
        size = max(one.world_size for one in ranks.values())
        cut = any(one.is_cut for one in ranks.values())
        return cls(place, len(ranks), size, (min(steps), max(steps)), cut)


def lines(found: ValuesComparison, sides: tuple[ValuesSide, ValuesSide]) -> Iterator[str]:
    """The comparison for people: where the runs part, or how far they are apart, and the bounds."""
    for name, side, dtype in zip("AB", sides, found.dtypes, strict=True):
        seen = f", {side.ranks:,} of them recorded" if side.ranks != side.world_size else ""
        cut = " (older ones were dropped)" if side.is_cut else ""
        yield (
            f"  {name}: {side.world_size:,} rank{'s' * (side.world_size > 1)}{seen}, {dtype}, "
            f"steps {side.steps[0]:,} to {side.steps[1]:,}{cut}   {side.place}"
        )
    compared = f"{len(found.steps):,} steps in common, {found.values:,} values compared"
    if found.first is None:
        yield f"{_HEADLINE[found.outcome]}  {compared}"
    else:
        yield from _parting(found.first, found)
        yield f"  {compared}"
    if found.outcome != "equal":
        yield from _bounds(found)
    for sentence in found.notes[:MOST_NOTES]:
        yield f"  {printable(sentence)}"
    if found.without_effect:
        shown = printable("; ".join(sorted(found.without_effect)[:2]))
        yield (
            f"  results of {len(found.without_effect)} collectives differ, and nothing that the "
            f"training uses: {shown}"
        )


def _parting(first: ValueDifference, found: ValuesComparison) -> Iterator[str]:
    quantity = first.key.quantity.replace("_", " ")
    turn = f", number {first.key.turn + 1} of this step" if first.key.turn else ""
    name = "" if quantity == first.key.name else f" {printable(first.key.name)}"
    ranks = f", {ranks_text(first.ranks)}" if first.ranks else ", all ranks together"
    at = f"step {first.step}"
    if found.shift:
        began = ", with which it began" if first.step == 0 else ""
        at = f"step {first.step + found.shift} of A, {at} of B{began}"
    yield f"DIFFERENT  the runs part at {at}: {quantity}{name}{turn}{ranks}"
    for side, value in (("A", first.one), ("B", first.other)):
        yield f"    {side}  {'has none' if value is None else _value_text(value)}"
    if math.isfinite(first.difference):
        yield (
            f"    relative difference {first.difference:.1e}; rounding explains {first.bound:.1e}"
        )
    yield from (f"  likely cause: {printable(one)}" for one in found.causes[:MOST_NOTES])
    others = "; ".join(
        f"{quantity.replace('_', ' ')} {names[0]}"
        + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for quantity, names in found.beyond.items()
    )
    yield f"  beyond rounding in this step: {printable(others)}"


def _value_text(value: Value) -> str:
    wrong = f", {value.nonfinite:,} elements not finite" if value.nonfinite else ""
    site = _site(value)
    place = f"   {site_text(site)}" if site else ""
    form = f"{value.column.dtype}, {value.column.numel:,} elements"
    if value.column.numel == 1:
        return f"{value.sum:.9g}{wrong}   ({value.column.dtype}){place}"
    return f"norm {value.norm:.7g}, {value.least:.4g} to {value.most:.4g}{wrong}   ({form}){place}"


def _site(value: Value) -> CallSite | None:
    file, _, rest = value.column.site.rpartition(":")[0].rpartition(":")
    function = value.column.site.rpartition(":")[2]
    return CallSite(file, int(rest), function) if rest.isdecimal() else None


def _bounds(found: ValuesComparison) -> Iterator[str]:
    worst: dict[str, tuple[int, Furthest]] = {}
    until = found.first.step if found.first else math.inf
    for step, by_quantity in found.steps.items():
        for quantity, one in by_quantity.items() if step < until else ():
            if quantity not in worst or worst[quantity][1].share < one.share:
                worst[quantity] = (step, one)
    for quantity in QUANTITIES:
        if quantity in worst and worst[quantity][1].difference:
            step, one = worst[quantity]
            name = "" if quantity == one.name else f" {printable(one.name, 60)}"
            yield (
                f"  furthest {'before it' if found.first else 'apart'}: "
                f"{quantity.replace('_', ' ')}{name}, step {step}: {one.difference:.1e} (bound "
                f"{one.bound:.1e})"
            )
    bound = bound_of_first_step(found.roundoff, found.depth, found.summands)
    jumps = bound_of_jumps(found.roundoff, found.kinks)
    of_jumps = f", {bound + jumps:.1e} of gradients through ReLU and the like" if jumps else ""
    yield (
        f"  bounds: rounding to {found.roundoff:.1e} in {found.depth:,} operations, sums of up to "
        f"{found.summands:,} numbers: {bound:.1e} in the first step{of_jumps}; later ones follow "
        "from how far apart the runs are by then; --rtol R widens them"
    )


def as_json(found: ValuesComparison, sides: tuple[ValuesSide, ValuesSide]) -> dict[str, Any]:
    """The whole comparison. `a` and `b` are the two, in the order in which they were named."""
    first = found.first
    return {
        "schema": VALUES_SCHEMA,
        "equal": first is None,
        "outcome": found.outcome,
        "a": _side_json(sides[0], found.dtypes[0]),
        "b": _side_json(sides[1], found.dtypes[1]),
        "values_compared": found.values,
        "first": None
        if first is None
        else {
            "step": first.step,
            "quantity": first.key.quantity,
            "name": first.key.name,
            "turn": first.key.turn,
            "ranks": list(first.ranks),
            "difference": _finite(first.difference),
            "bound": first.bound,
            "a": _value_json(first.one),
            "b": _value_json(first.other),
        },
        "causes": found.causes,
        "beyond_rounding": found.beyond,
        "bounds": {
            "roundoff": found.roundoff,
            "depth": found.depth,
            "summands": found.summands,
            "kinks": found.kinks,
            "first_step": bound_of_first_step(found.roundoff, found.depth, found.summands),
        },
        "steps": [
            {
                "step": step,
                **{
                    quantity: {
                        "name": one.name,
                        "difference": _finite(one.difference),
                        "bound": _finite(one.bound),
                    }
                    for quantity, one in by_quantity.items()
                },
            }
            for step, by_quantity in found.steps.items()
        ],
        "without_effect": sorted(found.without_effect),
        "notes": list(found.notes),
    }


def _side_json(side: ValuesSide, dtype: str) -> dict[str, Any]:
    return {
        "place": side.place,
        "world_size": side.world_size,
        "ranks": side.ranks,
        "dtype": dtype,
        "steps": list(side.steps),
        "older_dropped": side.is_cut,
    }


def _value_json(value: Value | None) -> dict[str, Any] | None:
    if value is None:
        return None
    site = _site(value)
    numbers = {"norm": value.norm, "sum": value.sum, "min": value.least, "max": value.most}
    return {
        "dtype": value.column.dtype,
        "elements": value.column.numel,
        "digest": f"{value.digest:016x}",
        **{name: _finite(number) for name, number in numbers.items()},
        "nonfinite": value.nonfinite,
        "location": site and {"file": site.file, "line": site.line, "function": site.function},
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


_WIDTH, _HEIGHT, _LEFT, _TOP = 760, 360, 70, 40
_COLOURS = dict(
    zip(QUANTITIES, ("#8c564b", "#d62728", "#1f77b4", "#7f7f7f", "#9467bd", "#2ca02c", "#17becf"),
        strict=True)
)  # fmt: skip


def plot(found: ValuesComparison) -> str:
    """An SVG of the relative difference per step, of each quantity that which is furthest apart by
    its bound; dashed: the bounds. What is equal bit for bit lies on the lowest line."""
    steps = list(found.steps)
    drawn = [
        number
        for one in found.steps.values()
        for each in one.values()
        for number in (each.difference, each.bound)
        if 0 < number < math.inf
    ]
    low = math.floor(math.log10(max(min(drawn, default=1e-9), 1e-18))) - 1
    high = max(low + 2, math.ceil(math.log10(max(drawn, default=1.0))))

    def x(step: int) -> float:
        return _LEFT + (step - steps[0]) / max(1, steps[-1] - steps[0]) * (_WIDTH - _LEFT - 150)

    def y(number: float) -> float:
        decades = math.log10(number) if number > 0 else low
        share = (min(max(decades, low), high) - low) / (high - low)
        return _TOP + (1 - share) * (_HEIGHT - 2 * _TOP)

    def line(points: list[tuple[float, float]], style: str) -> str:
        places = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
        return f'<polyline points="{places}" fill="none" {style}/>'

    def text(left: float, top: float, words: str, more: str = "") -> str:
        return f'<text x="{left:.1f}" y="{top:.1f}" {more}>{escape(words)}</text>'

    parts = [text(_LEFT, 20, "relative difference per step (dashed: what rounding explains)")]
    for decade in range(low, high + 1, max(1, (high - low) // 8)):
        height = y(10.0**decade)
        parts.append(line([(_LEFT, height), (_WIDTH - 150, height)], 'stroke="#ddd"'))
        label = "0" if decade == low else f"1e{decade}"
        parts.append(text(_LEFT - 8, height + 4, label, 'text-anchor="end"'))
    shown = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    parts += [text(x(one), _HEIGHT - 20, str(one), 'text-anchor="middle"') for one in shown]
    row = 0
    for quantity, colour in _COLOURS.items():
        values = {step: one[quantity] for step, one in found.steps.items() if quantity in one}
        if not values:
            continue
        apart = [(x(step), y(one.difference)) for step, one in values.items()]
        parts.append(line(apart, f'stroke="{colour}" stroke-width="2"'))
        allowed = [(x(step), y(one.bound)) for step, one in values.items()]
        parts.append(line(allowed, f'stroke="{colour}" stroke-dasharray="4 3"'))
        words = quantity.replace("_", " ")
        parts.append(text(_WIDTH - 140, _TOP + 18 * row, words, f'fill="{colour}"'))
        row += 1
    if found.first is not None:
        at = x(found.first.step)
        parts.append(line([(at, _TOP), (at, _HEIGHT - _TOP)], 'stroke="#000" stroke-width="0.7"'))
        parts.append(text(at + 4, _TOP - 4, f"part at step {found.first.step}"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
        + "".join(parts)
        + "</svg>\n"
    )
