"""The command palette: what is typed there finds screens, actions, groups, and any rank."""

from __future__ import annotations

import asyncio
from pathlib import Path

from textual.command import CommandPalette
from textual.widgets import OptionList

from distdebug.tui.commands import Commands

from .driver import Driver, a_year_later, made, opened


async def find(driver: Driver, words: str) -> None:
    """Type the words, and take the first that is found."""
    await driver.press("ctrl+p")
    await driver.pilot.press(*["space" if letter == " " else letter for letter in words])
    options = driver.app.screen.query_one(OptionList)

    def found() -> bool:
        first = options.get_option_at_index(0) if options.option_count else None
        return first is not None and words in str(first.prompt)

    await driver.until(found, words)
    await driver.pilot.press("enter")
    await driver.until(lambda: not CommandPalette.is_open(driver.app), "that it is closed")


def test_what_is_typed_is_found(tmp_path: Path) -> None:
    directory = made(tmp_path, "late", 256)

    async def drive() -> None:
        async with opened(directory.path, a_year_later) as driver:
            await find(driver, "reverse")  # a key of the first screen's own
            assert getattr(driver.app.view, "reverse", False)
            await find(driver, "stop")
            await driver.until(lambda: "the run is over" in driver.text, "the refusal")
            await find(driver, "group default_pg")
            await driver.settled()
            assert driver.app.view.focus().group == ("0", 0)
            await find(driver, "rank 201")
            await driver.settled()
            assert driver.app.view.name == "rank"
            assert "rank 201 waits for 255" in driver.text
            await find(driver, "Waits screen")
            assert driver.app.view.name == "waits"

    asyncio.run(drive())


def test_it_offers_everything_before_a_word_is_typed(tmp_path: Path) -> None:
    directory = made(tmp_path, "late")

    async def drive() -> None:
        async with opened(directory.path, a_year_later) as driver:
            offered = [hit.prompt async for hit in Commands(driver.app.screen).discover()]
            assert {"Overview screen", "stop", "quit", "svg"} <= set(map(str, offered))

    asyncio.run(drive())
