"""The screens whose text is kept in `snapshots/`. `python -m tests.unit.tui.snapshots` renews them.

Look at the difference (`git diff`) before it is committed: that is the review of a screen.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from .driver import a_year_later, clock_of, made, opened

DIRECTORY = Path(__file__).with_name("snapshots")
SIZES = ((80, 24), (160, 50))

# Name -> (state, ranks, keys pressed from the overview on).
CASES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "overview-healthy": ("healthy", 8, ()),
    "overview-mismatch": ("mismatch", 4, ()),
    "overview-deadlock": ("deadlock", 4, ()),
    "overview-late": ("late", 4, ()),
    "overview-died": ("died", 4, ()),
    "overview-paused": ("paused", 4, ()),
    "overview-finished": ("finished", 4, ()),
    "overview-nan": ("nan", 4, ()),
    "overview-256-ranks": ("late", 256, ()),
    "collectives-healthy": ("healthy", 8, ("c",)),
    "collectives-mismatch": ("mismatch", 4, ("c",)),
    "collectives-256-ranks": ("late", 256, ("c",)),
    "rank-calls": ("mismatch", 4, ("r",)),
    "rank-stack": ("late", 4, ("end", "r", "tab")),
    "rank-log": ("healthy", 4, ("r", "l")),
    "rank-about": ("died", 4, ("r", "tab", "tab", "tab")),
    "stacks-late": ("late", 4, ("s", "a")),
    "waits-deadlock": ("deadlock", 4, ("w",)),
    "waits-256-ranks": ("late", 256, ("w",)),
    "help": ("healthy", 4, ("question_mark",)),
}
LIVE = frozenset(
    {"overview-healthy", "overview-late", "overview-paused", "overview-256-ranks", "rank-log"}
)
"""Runs that look live: nothing is proven in them, so that one look shows all."""


async def rendered(name: str, size: tuple[int, int], scratch: Path) -> str:
    """What that screen shows now."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    state, ranks, keys = CASES[name]
    live = name in LIVE
    directory = made(scratch, state, ranks, hold=live)
    clock = clock_of(directory) if live else a_year_later
    try:
        async with opened(directory.path, clock, size) as driver:
            await driver.press(*keys)
            return driver.text
    finally:
        directory.close()


def kept(name: str, size: tuple[int, int]) -> Path:
    """The file that holds what it should show."""
    return DIRECTORY / f"{name}-{size[0]}x{size[1]}.txt"


def _renew() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for old in DIRECTORY.glob("*.txt"):
        old.unlink()
    for name in CASES:
        for size in SIZES:
            with tempfile.TemporaryDirectory() as scratch:
                text = asyncio.run(rendered(name, size, Path(scratch)))
            kept(name, size).write_text(text)


if __name__ == "__main__":
    _renew()
