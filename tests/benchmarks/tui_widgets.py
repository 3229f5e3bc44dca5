"""What a refresh costs in Textual's DataTable and in the app's own Sheet: the same rows in both.

python tests/benchmarks/tui_widgets.py [8] [64] [512] [16384]     (default: all)

Each refresh changes the text of one column in every row, as the durations of waiting ranks do, and
is measured until the screen is drawn, in seconds of CPU: the figures hold on a crowded machine.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import DataTable

from distdebug.tui.text import Line, fit, line
from distdebug.tui.widgets.sheet import Sheet

COLUMNS = ("rank", "state", "call", "seq", "for", "lag", "line")
WIDTHS = (6, 10, 40, 7, 7, 4, 40)
ROUNDS = 7


def cells(rank: int, turn: int) -> tuple[str, ...]:
    """A row of the overview; the duration is another one at each turn."""
    call = "all_reduce(sum, float32[1024])"
    return (f" {rank}", "waiting", call, "#17", f"{turn}.{rank % 10} s", "", "train.py:88 in step")


class Sheets(App[None]):
    """The rows as lines of the app's own."""

    def compose(self) -> ComposeResult:
        yield Sheet("body")

    def renew(self, ranks: int, turn: int) -> None:
        """All rows, as the app hands them over."""
        lines: list[Line] = [
            line(" ".join(map(fit, cells(rank, turn), WIDTHS))) for rank in range(ranks)
        ]
        self.query_one(Sheet).show(lines, 0)


class Tables(App[None]):
    """The rows in Textual's table."""

    def compose(self) -> ComposeResult:
        yield DataTable(cursor_type="row")

    def renew(self, ranks: int, turn: int) -> None:
        """All rows at first, then the cells that change."""
        table = self.query_one(DataTable)
        if not table.row_count:
            for name, width in zip(COLUMNS, WIDTHS, strict=True):
                table.add_column(name, key=name, width=width)
            for rank in range(ranks):
                table.add_row(*cells(rank, turn), key=str(rank))
            return
        for rank in range(ranks):
            table.update_cell(str(rank), "for", cells(rank, turn)[4])


async def refreshes(app: Sheets | Tables, ranks: int) -> tuple[float, float]:
    """Milliseconds of CPU: the first one, and the median of those that follow."""
    async with app.run_test(size=(160, 50)) as pilot:
        found = [await _timed(app.renew, ranks, turn, pilot) for turn in range(ROUNDS)]
    return found[0], statistics.median(found[1:])


async def _timed(
    renew: Callable[[int, int], None], ranks: int, turn: int, pilot: Pilot[None]
) -> float:
    began_s = time.process_time()
    renew(ranks, turn)
    await _drawn(pilot.pause)
    return (time.process_time() - began_s) * 1e3


async def _drawn(pause: Callable[[], Awaitable[None]]) -> None:
    await pause()
    await pause()


def main() -> None:
    """Both, for each number of rows."""
    for text in sys.argv[1:] or ["8", "64", "512", "16384"]:
        for app in (Sheets(), Tables()):
            first, later = asyncio.run(refreshes(app, int(text)))
            name = type(app).__name__.removesuffix("s")
            print(f"{int(text):>6,} rows  {name:<6} first {first:8.1f} ms   then {later:8.1f} ms")


if __name__ == "__main__":
    main()
