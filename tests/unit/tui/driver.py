"""Drives the app on a made run: waits until it shows what was asked for, and reads the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from distdebug.record.runs.run_directory import RunDirectory
from distdebug.tui.app import TerminalApp
from distdebug.tui.picture import Stage
from fixtures.make_run import START_NS, clock_of, make

LIMIT_S = 60.0
_HOPS = 6
"""A key goes from the app to a widget, from there to the screen and to the app again, and what that
does may go the same way."""


def text_of(app: TerminalApp) -> str:
    """The screen as the terminal shows it, without colours and blanks at line ends."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


class Driver:
    """One app, its pilot, and patience."""

    def __init__(self, app: TerminalApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait for it, within the limit."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}\n{self.text}"
            await asyncio.sleep(0.01)
        await self.pilot.pause()

    async def handled(self) -> None:
        """What was pressed has had its effect. (Textual's own pilot takes an app for idle that is
        given no core.)"""
        for _ in range(_HOPS):  # each waits for what lies in the queues of all by then
            await self.pilot._wait_for_screen(LIMIT_S)

    async def settled(self) -> None:
        """What was pressed has had its effect, and the picture has what the present screen
        needs."""
        await self.handled()

        def shown() -> bool:
            picture = self.app.picture
            read = picture.stage not in (Stage.READING, Stage.NOTHING)
            return read and picture.focus == self.app.view.focus()

        await self.until(shown, f"{self.app.view.focus()}")

    async def press(self, *keys: str) -> None:
        """Press the keys, one after the other, each when the last one has had its effect."""
        for key in keys:
            await self.pilot.press(key)
            await self.handled()
            await self.pilot.pause()
            if self.app.missed is None and len(self.app.screen_stack) == 1:
                await self.settled()

    async def looked_again(self) -> None:
        """The reader has diagnosed, too: its first look at a live run is a brief one."""
        await self.until(lambda: self.app.feed.looks >= 2, "a second look")

    @property
    def text(self) -> str:
        return text_of(self.app)


@asynccontextmanager
async def opened(
    path: Path, clock: Callable[[], int], size: tuple[int, int] = (100, 30), settle: bool = True
) -> AsyncIterator[Driver]:
    """The app on this run directory."""
    app = TerminalApp(path, clock)
    async with app.run_test(size=size, notifications=True) as pilot:
        driver = Driver(app, pilot)
        if settle:
            await driver.settled()
        yield driver


def a_year_later() -> int:
    """A clock that reads long after every made run."""
    return START_NS + 365 * 86_400 * 10**9


def made(path: Path, state: str, ranks: int = 4, *, hold: bool = False) -> RunDirectory:
    """A made run below this path."""
    return make(path / f"{state}{ranks}", state, ranks, hold=hold)


__all__ = ["Driver", "a_year_later", "clock_of", "made", "opened", "text_of"]
