"""Draws what `distdebug bench comm --json FIGURES` has measured: time over size, both axes
logarithmic, as SVG.

    python -m tests.benchmarks.comm_plot FIGURES PLOT

One panel per operation (rows) and number of ranks (columns), one line per backend; all panels have
the same axes, so that they can be compared at a glance.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from distdebug.benchmarks.comm_figures import size_text

WIDTH, HEIGHT = 300, 220
LEFT, RIGHT, TOP, BOTTOM = 66, 24, 34, 34
HEAD = 48
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito's
_DASHES = ("", "6 3", "2 2", "8 3 2 3", "1 3", "10 4")


@dataclass(frozen=True)
class Axes:
    """The ranges of all panels: sizes in bytes, times in powers of ten of µs."""

    smallest: int
    largest: int
    fastest: int
    slowest: int

    def x(self, size_bytes: int) -> float:
        span = math.log2(self.largest / self.smallest) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(size_bytes / self.smallest) / span

    def y(self, time_us: float) -> float:
        share = (math.log10(time_us) - self.fastest) / (self.slowest - self.fastest)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def plot(rows: Sequence[dict[str, Any]], backends: Sequence[str], title: str) -> str:
    """The plot of rows from `comm_figures.summarise`; those without a size are left out."""
    rows = [row for row in rows if row["size_bytes"]]
    ops = list(dict.fromkeys(row["op"] for row in rows))
    counts = list(dict.fromkeys(row["ranks"] for row in rows))
    width = max(WIDTH * max(len(counts), 1), 2 * WIDTH)
    area = f'width="{width}" height="{HEAD + HEIGHT * len(ops)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {area} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="13" font-weight="bold">{escape(title)}</text>',
        *_legend(backends),
    ]
    if rows:
        axes = _axes(rows, backends)
        for down, op in enumerate(ops):
            for across, ranks in enumerate(counts):
                here = [row for row in rows if (row["op"], row["ranks"]) == (op, ranks)]
                place = f"translate({across * WIDTH} {HEAD + down * HEIGHT})"
                parts.append(f'<g transform="{place}">')
                parts += _panel(here, backends, axes, f"{op}, {ranks} ranks")
                parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axes(rows: Sequence[dict[str, Any]], backends: Sequence[str]) -> Axes:
    sizes = [row["size_bytes"] for row in rows]
    times = [row["backends"][name]["time_us"] for row in rows for name in backends]
    fastest = math.floor(math.log10(min(times)))
    slowest = max(math.ceil(math.log10(max(times))), fastest + 1)
    return Axes(min(sizes), max(sizes), fastest, slowest)


def _legend(backends: Sequence[str]) -> Iterator[str]:
    x = LEFT
    for index, name in enumerate(backends):
        yield f'<path d="M{x} 36h24" {_stroke(index)}/>'
        yield f'<text x="{x + 30}" y="40">{escape(name)}</text>'
        x += 50 + 8 * len(name)


def _stroke(index: int) -> str:
    colour, dash = _COLOURS[index % len(_COLOURS)], _DASHES[index % len(_DASHES)]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{colour}" stroke-width="2"{dashes}'


def _panel(
    rows: Sequence[dict[str, Any]], backends: Sequence[str], axes: Axes, title: str
) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    yield f'<text x="{LEFT}" y="{TOP - 8}">{escape(title)}</text>'
    for power in range(axes.fastest, axes.slowest + 1):
        y = axes.y(10.0**power)
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_time_text(power)}</text>'
    for size in _size_ticks(axes):
        x = axes.x(size)
        yield f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#eee"/>'
        yield (
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" font-size="10">'
            f"{size_text(size)}</text>"
        )
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#444"/>'
    for index, name in enumerate(backends):
        points = [
            f"{axes.x(row['size_bytes']):.1f},{axes.y(row['backends'][name]['time_us']):.1f}"
            for row in sorted(rows, key=lambda row: int(row["size_bytes"]))
        ]
        yield f'<polyline points="{" ".join(points)}" {_stroke(index)}/>'
        for point in points:
            x_text, y_text = point.split(",")
            colour = _COLOURS[index % len(_COLOURS)]
            yield f'<circle cx="{x_text}" cy="{y_text}" r="2.5" fill="{colour}"/>'


def _time_text(power: int) -> str:
    """10 ** power µs."""
    unit, exponent = ("s", 6) if power >= 6 else ("ms", 3) if power >= 3 else ("µs", 0)
    return f"{10.0 ** (power - exponent):g} {unit}"


def _size_ticks(axes: Axes) -> list[int]:
    """Returns at most five sizes, the smallest times powers of two, the largest too where it is
    one."""
    doublings = int(math.log2(axes.largest / axes.smallest) + 1e-9)
    step = max(1, math.ceil(doublings / 4))
    while doublings % step:
        step += 1
    return [axes.smallest << power for power in range(0, doublings + 1, step)]


def main() -> None:
    """Read the figures, and write the plot."""
    measured = json.loads(Path(sys.argv[1]).read_text())
    title = f"time of one call, torch {measured['torch']} on {measured['cores']} cores"
    Path(sys.argv[2]).write_text(plot(measured["rows"], measured["backends"], title))


if __name__ == "__main__":
    main()
