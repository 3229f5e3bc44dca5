"""Whether a program may come to a breakpoint, by the modules that it has loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from distdebug.rank.group import timeouts


def load(monkeypatch: pytest.MonkeyPatch, name: str, file: Path | None) -> None:
    """A module of this name, whose source asks for a breakpoint. None: it has no file."""
    module = ModuleType(name)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("def train():\n    breakpoint()\n")
        module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in timeouts.ASKING:
        monkeypatch.delenv(name, raising=False)
    # The tests' own modules are the user's as well, and some of them name breakpoints.
    own = [name for name in sys.modules if name.partition(".")[0] in ("tests", "fixtures")]
    for name in own:
        monkeypatch.delitem(sys.modules, name)
    assert not timeouts.expected()


@pytest.mark.parametrize("name", ["of_mine", "of_mine.deep.down"])
def test_a_module_of_the_users(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load(monkeypatch, name, tmp_path / "train.py")
    assert timeouts.expected()


def test_a_module_of_the_users_in_a_package_without_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load(monkeypatch, "spread", None)
    load(monkeypatch, "spread.theirs", tmp_path / "site-packages" / "spread" / "theirs.py")
    assert not timeouts.expected()
    load(monkeypatch, "spread.mine", tmp_path / "spread" / "mine.py")
    assert timeouts.expected()


def test_what_lies_in_a_package_of_others_is_theirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages = tmp_path / "site-packages" / "theirs"
    load(monkeypatch, "theirs.inner", packages / "inner.py")
    load(monkeypatch, "theirs", packages / "__init__.py")
    assert not timeouts.expected()


def test_the_command_line_may_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDEBUG_BREAK", "all_reduce")
    assert timeouts.expected()
