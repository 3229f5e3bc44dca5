"""What is installed is what lies in the tree, and takes no name that belongs to others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.architecture import FOLDERS, module_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_of_the_tree_is_listed() -> None:
    packages = {
        module_name(ROOT, file)
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(SETUPTOOLS["packages"]) == sorted(packages)


def test_every_module_lies_in_a_package() -> None:
    """Else it is not installed: but for what is found by its path."""
    alone = {
        file.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if not (file.parent / "__init__.py").exists()
    }
    entry = "debugger/hook/entry/_distdebug_entry.py"
    assert alone == {
        entry,
        "debugger/commands/programs/demo.py",
        "debugger/hook/site/sitecustomize.py",
    }


def test_every_file_beside_the_modules_is_listed() -> None:
    listed = {
        f"{package}/{name}"
        for package, names in SETUPTOOLS["package-data"].items()
        for name in names
    }
    listed -= {
        "distdebug.commands/programs/demo.py",
        "distdebug.hook/site/sitecustomize.py",
        "distdebug/docs/*.md",  # the pages, some of which `distdebug explain` prints
        "distdebug/docs/*/*.md",
        "distdebug/docs/*/*.json",  # what `distdebug report --schema` prints
    }
    there = {
        f"{_package(file)}/{file.name}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.*")
        if file.suffix in (".tcss", ".typed", ".html", ".css", ".js")
    }
    assert listed == there


def _package(file: Path) -> str:
    folder, *rooms = file.relative_to(ROOT).parts[:-1]
    return ".".join([FOLDERS[folder], *rooms])


@pytest.mark.parametrize("name", ["debugger", "tui"])
def test_names_of_others_are_not_taken(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert f"No module named '{name}'" in done.stderr


def test_no_module_is_loaded_under_two_names() -> None:
    """pytest has the root on its path, so that a test could import a folder by its own name."""
    places = {
        str(ROOT / folder / "__init__.py"): name
        for folder, name in FOLDERS.items()
        if folder != name
    }
    wrong = [name for name in ("debugger", "tui") if name in sys.modules]
    assert not wrong, places
    file = getattr(sys.modules["distdebug"], "__file__", "")
    assert sys.modules.get("_distdebug") is sys.modules["distdebug"], file
