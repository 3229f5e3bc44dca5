"""Which releases of torch are taken as they are, with a sentence, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdebug.record import torch_versions


@pytest.mark.parametrize(
    ("version", "old", "new"),
    [
        ("2.10.2", True, False),
        ("1.13.1+cu117", True, False),
        ("2.11.0", False, False),
        ("2.13.0+cpu", False, False),
        ("2.15.0a0+git0123abc", False, False),
        ("2.16.0", False, True),
        ("2.100.0", False, True),
        ("3.0.0", False, True),
        ("", False, False),
        ("of my own", False, False),
    ],
)
def test_releases(version: str, old: bool, new: bool) -> None:
    assert bool(torch_versions.too_old(version)) is old
    assert bool(torch_versions.too_new(version)) is new


def test_sentences() -> None:
    assert torch_versions.too_old("2.9.1") == (
        "torch 2.9.1 is too old: distdebug needs torch 2.11 or newer"
    )
    assert torch_versions.too_new("2.17.0").startswith(
        "torch 2.17.0 is newer than 2.15, the newest"
    )


def test_the_version_is_read_and_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("raise SystemExit\n__version__ = '2.14.1+cu130'\n")
    assert torch_versions.of_package(tmp_path) == "2.14.1+cu130"
    (tmp_path / "version.py").write_text("nothing = 1\n")
    assert torch_versions.of_package(tmp_path) == ""
    assert torch_versions.of_package(tmp_path / "none") == ""
