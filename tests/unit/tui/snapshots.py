"""The screens whose text is kept in `snapshots/`. `python -m tests.unit.tui.snapshots` renews them.

Look at the difference (`git diff`) before it is committed: that is the review of a screen. Runs are
recorded ones (fixtures/record_runs.py), or made (fixtures/make_run.py) where a state is rare.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fixtures import recorded

from .driver import a_year_later, clock_of, made, opened

DIRECTORY = Path(__file__).with_name("snapshots")
SIZES = ((80, 24), (160, 50))

RECORDED: dict[str, dict[str, tuple[str, ...]]] = {
    "healthy": {
        "overview": (),
        "overview-strips": ("t",),
        "collectives": ("c",),
        "rank": ("r",),
        "rank-log": ("r", "l", "l"),
        "rank-about": ("r", "tab", "tab", "tab"),
        "stacks": ("s",),
        "waits": ("w",),
        "findings": ("d",),
        "help": ("question_mark",),
    },
    "finished": {"overview": (), "rank": ("r",)},
    "mismatch": {
        "overview": (),
        "findings": ("d",),
        "collectives": ("c",),
        "rank": ("r",),
        "rank-stack": ("r", "tab"),
        "stacks": ("s",),
        "waits": ("w",),
    },
    "deadlock": {"overview": (), "findings": ("d",), "waits": ("w",)},
    "deadlock-live": {"overview": (), "waits": ("w",), "rank": ("r",)},
    "late": {"overview": (), "collectives": ("c",), "waits": ("w",)},
    "missing": {"overview": (), "findings": ("d",), "stacks": ("s",)},
    "died": {"overview": (), "findings": ("d",), "rank-about": ("r", "tab", "tab", "tab")},
    "exception": {
        "overview": (),
        "findings": ("d",),
        "rank-log": ("r", "tab", "tab", "u"),
        "rank-log-line": ("r", "u", "u", "up", "up"),
    },
    "divergence": {"overview": (), "findings": ("d",)},
    "nan": {"overview": (), "collectives": ("c",)},
    "p2p": {"overview": (), "findings": ("d",), "rank": ("r",), "collectives": ("c",)},
    "straggler": {"overview": (), "findings": ("d",), "collectives": ("c",)},
    "join": {"overview": (), "waits": ("w",)},
    "parted": {"collectives": ("c",)},
    "killed": {"overview": (), "rank": ("r",), "waits": ("w",)},
    "many": {"overview": (), "collectives": ("c",), "waits": ("w",)},
}
"""Recording -> screen -> the keys pressed from the overview on."""

MADE: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "made-paused-overview": ("paused", 4, ()),
    "made-late-stacks": ("late", 4, ("s", "a")),
    "made-late-rank-stack": ("late", 4, ("end", "r", "tab")),
}
"""Name -> state, ranks, keys. They look live."""

CASES = sorted([*MADE, *(f"{run}-{screen}" for run in RECORDED for screen in RECORDED[run])])


async def rendered(name: str, scratch: Path, first: int = 0) -> dict[tuple[int, int], str]:
    """What that screen shows now at each size: the app is started at the first one, and its
    terminal gets the other sizes then. `scratch` may be shared: a recording is unpacked there
    once."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    sizes = SIZES[first:] + SIZES[:first]
    with _run(name, scratch) as (path, clock, live, keys):
        async with opened(path, clock, sizes[0]) as driver:
            await driver.press(*keys)
            if live:
                await driver.looked_again()
            if name.startswith("deadlock-live"):
                await driver.until(lambda: driver.app.picture.found, "the deadlock")
            shown = {sizes[0]: driver.text}
            for size in sizes[1:]:
                await driver.pilot.resize_terminal(*size)
                await driver.settled()
                shown[size] = driver.text
            return shown


Run = tuple[Path, Callable[[], int], bool, tuple[str, ...]]


@contextmanager
def _run(name: str, scratch: Path) -> Iterator[Run]:
    if name in MADE:
        state, ranks, keys = MADE[name]
        with tempfile.TemporaryDirectory(dir=scratch) as own:
            directory = made(Path(own), state, ranks, hold=True)
            yield directory.path, clock_of(directory), True, keys
            directory.close()
        return
    recording = next(run for run in RECORDED if name.startswith(f"{run}-") and _of(run, name))
    path = scratch / recording
    run = recorded.open_again(path) if path.exists() else recorded.unpack(recording, path)
    keys = RECORDED[recording][name.removeprefix(f"{recording}-")]
    if not run.was_live:
        yield path, a_year_later, False, keys
        return
    held = run.hold()
    try:
        yield path, lambda: run.end_ns, True, keys
    finally:
        os.close(held)


def _of(recording: str, name: str) -> bool:
    return name.removeprefix(f"{recording}-") in RECORDED[recording]


def kept(name: str, size: tuple[int, int]) -> Path:
    """The file that holds what it should show."""
    return DIRECTORY / f"{name}-{size[0]}x{size[1]}.txt"


def _renew() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for old in DIRECTORY.glob("*.txt"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        for name in CASES:
            for size, text in asyncio.run(rendered(name, Path(scratch))).items():
                kept(name, size).write_text(text)


if __name__ == "__main__":
    _renew()
