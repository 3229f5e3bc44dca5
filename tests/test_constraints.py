"""Every package that pyproject.toml asks for has one version in each list of versions, so that two
machines, and two days, test the same."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def plain(name: str) -> str:
    """The name of a package as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> dict[str, str]:
    lines = (line.partition(";")[0].strip() for line in path.read_text().splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {plain(name): version for name, version in pairs}


def asked() -> set[str]:
    return {plain(re.split(r"[^\w.-]", line)[0]) for line in requires("distdebug") or ()}


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-newest.txt"])
def test_what_we_ask_for_has_a_version(name: str) -> None:
    assert len(asked()) > 15
    assert asked() <= pinned(ROOT / name).keys()


def test_both_lists_agree_but_for_torch_and_what_it_brings() -> None:
    """What only torch asks for may differ: it has to fit that torch."""
    one, other = (pinned(ROOT / f"constraints{part}.txt") for part in ("", "-newest"))
    differ = {package for package in one.keys() & other.keys() if one[package] != other[package]}
    brought = {package for package in differ if package.startswith("nvidia-")} | {"triton"}
    assert differ - brought == {"torch"}
