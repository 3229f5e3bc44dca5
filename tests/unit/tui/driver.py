"""Drives the app on a made run: waits until it shows what was asked for, and reads the screen.

Nothing is waited for by the clock, as Textual's own pilot does, which sleeps until the process has
used little CPU for a moment: that takes an app for idle which is given no core, and an idle one for
busy where another thread is at work. Stylesheets, of which each app would parse some fifty, are
parsed once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from debugger.record.runs.run_directory import RunDirectory
from fixtures.make_run import START_NS, clock_of, make
from tui.app import TerminalApp
from tui.picture import Stage

LIMIT_S = 60.0
_QUIET = 2
"""So often in a row nothing may be under way: what a widget has begun to handle at one look has, by
the next, come into the queue of another, or is over."""
_parsed: dict[Any, list[RuleSet]] = {}


async def _no_sleep(_min_s: float = 0, _max_s: float = 0) -> None:
    """For `wait_for_idle`, which is by the clock."""


@contextmanager
def _parses_once() -> Iterator[None]:
    parse = Stylesheet._parse_rules

    def parse_once(sheet: Stylesheet, *place: Any, **named: Any) -> list[RuleSet]:
        key = (*place, *sorted(named.items()), *sorted(sheet._variables.items()))
        if key not in _parsed:
            _parsed[key] = parse(sheet, *place, **named)
        return _parsed[key]

    with patch.object(Stylesheet, "_parse_rules", parse_once):
        yield


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

    async def handled(self, _min_s: float = 0) -> None:
        """What was pressed has had its effect: nothing is on its way in the app any more. The
        pilot's `pause` waits for this, too."""
        quiet = 0
        while quiet < _QUIET:
            await self.pilot._wait_for_screen(LIMIT_S)  # for what lies in the queues of all by now
            quiet = 0 if self._under_way() else quiet + 1
            self.app.screen._on_timer_update()  # at once, not at the next tick

    def _under_way(self) -> bool:
        """Whether a message, or a call for later, lies in a queue, or the screen is to be drawn."""
        app, top = self.app, self.app.screen
        if top._layout_required or top._scroll_required or top._repaint_required:
            return True
        if top._dirty_widgets or top._callbacks:
            return True
        pumps = [app, *(one for screen in app.screen_stack for one in screen.walk_children())]
        pumps += app.screen_stack
        return any(one.message_queue_size or one._next_callbacks for one in pumps)

    async def settled(self) -> None:
        """What was pressed has had its effect, and the picture has what the present screen
        needs."""
        await self.pilot.pause()
        await self._read()

    async def _read(self) -> None:
        """The picture has what the present screen needs."""

        def shown() -> bool:
            picture = self.app.picture
            read = picture.stage not in (Stage.READING, Stage.NOTHING)
            return read and picture.focus == self.app.view.focus()

        if not shown():
            await self.until(shown, f"{self.app.view.focus()}")

    async def press(self, *keys: str) -> None:
        """Press the keys, one after the other, each when the last one has had its effect."""
        for key in keys:
            await self.pilot.press(key)
            await self.pilot.pause()
            if self.app.missed is None and len(self.app.screen_stack) == 1:
                await self._read()

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
    with _parses_once(), patch("textual.app.wait_for_idle", _no_sleep):
        async with app.run_test(size=size, notifications=True) as pilot:
            driver = Driver(app, pilot)
            with patch("textual.pilot.wait_for_idle", driver.handled):
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
