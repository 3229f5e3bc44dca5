"""What is in the wheel and in the sdist: all of the tree that belongs there, and nothing else."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.architecture import FOLDERS
from tests.support.installed import copy_of_tree

pytestmark = pytest.mark.long
DATA = {".py", ".tcss", ".typed", ".html", ".css", ".js"}
ENTRY = "debugger/hook/entry/_distdebug_entry.py"


def test_the_wheel_has_each_file_of_the_tree_at_its_place(wheel: Path, tmp_path: Path) -> None:
    tree = copy_of_tree(tmp_path / "tree")
    expected = {"_distdebug_entry.py": (tree / ENTRY).read_bytes()}
    for folder, name in FOLDERS.items():
        for file in (tree / folder).rglob("*"):
            is_page = file.is_file() and tree / folder / "docs" in file.parents
            if (file.suffix in DATA or is_page) and file != tree / ENTRY:
                place = f"{name.replace('.', '/')}/{file.relative_to(tree / folder).as_posix()}"
                expected[place] = file.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    about = {name for name in found if name.split("/")[0].endswith(".dist-info")}
    assert {name: found[name] for name in found.keys() - about} == expected
    top_level = next(name for name in about if name.endswith("top_level.txt"))
    assert found[top_level].decode().split() == ["_distdebug_entry", "distcore", "distdebug"]


def test_the_sdist_has_all_that_a_clone_has(released: Path, tmp_path: Path) -> None:
    """So what `make test` needs is there, whatever a test reads."""
    (sdist,) = released.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = [one.name.partition("/")[2] for one in archive if not one.isdir()]
    tree = copy_of_tree(tmp_path / "tree")
    there = {file.relative_to(tree).as_posix() for file in tree.rglob("*") if file.is_file()}
    made = {"PKG-INFO", "setup.cfg", "MANIFEST.in"}  # by setuptools, and by `make dist` for it
    assert {name for name in members if ".egg-info/" not in name} - made == there
