"""Every screen at 80x24 and 160x50, compared with the text that is kept of it."""

from __future__ import annotations

import asyncio
import difflib
from pathlib import Path

import pytest

from .snapshots import CASES, DIRECTORY, SIZES, kept, rendered


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the recorded runs are unpacked, each once."""
    return tmp_path_factory.mktemp("recorded")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", CASES)
def test_screen(name: str, size: tuple[int, int], unpacked: Path) -> None:
    shown = asyncio.run(rendered(name, size, unpacked))
    wanted = kept(name, size).read_text()
    if shown != wanted:
        rows = difflib.unified_diff(wanted.splitlines(), shown.splitlines(), "kept", "now")
        text = "\n".join(rows)
        pytest.fail(f"{text}\nto keep what it shows now: python -m tests.unit.tui.snapshots")


def test_nothing_is_kept_that_no_test_reads() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {
        kept(name, size).name for name in CASES for size in SIZES
    }
