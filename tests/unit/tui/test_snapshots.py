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


@pytest.mark.parametrize("name", CASES)
def test_screen(name: str, unpacked: Path) -> None:
    """A terminal that gets another size shows what one shows that had it from the beginning: every
    other app begins with the large one."""
    begins_at = CASES.index(name) % len(SIZES)
    differences = []
    for size, shown in asyncio.run(rendered(name, unpacked, begins_at)).items():
        wanted = kept(name, size)
        rows = difflib.unified_diff(
            wanted.read_text().splitlines(), shown.splitlines(), wanted.name, "now", lineterm=""
        )
        differences.extend(rows)
    if differences:
        text = "\n".join(differences)
        pytest.fail(f"{text}\nto keep what it shows now: python -m tests.unit.tui.snapshots")


def test_nothing_is_kept_that_no_test_reads() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {
        kept(name, size).name for name in CASES for size in SIZES
    }
