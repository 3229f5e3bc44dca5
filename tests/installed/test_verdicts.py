"""The verdicts of all fixtures, and the plugin's own projects, by the wheel alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import installed

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
OF_TESTS = ("tests", "fixtures", "pyproject.toml", "constraints.txt", "README.md")
"""What the tests need of the repository: no package of ours is beside them."""
VERDICTS = ("tests/e2e/test_fixtures.py", "tests/plugin")


def test_verdicts(wheel: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in OF_TESTS:
        source = installed.ROOT / name
        if source.is_dir():
            left_out = shutil.ignore_patterns(*installed.NOT_OF_THE_TREE)
            shutil.copytree(source, tree / name, ignore=left_out)
        else:
            shutil.copy(source, tree)
    environment = installed.make(tmp_path / "venv", f"{wheel}[test]")
    selected = ["-m", "not long", "-n", "2", "--dist", "worksteal", "-q", "--color=no"]
    done = environment.run("pytest", *selected, *VERDICTS, cwd=tree, limit_s=1700)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "ModuleNotFoundError" not in done.stdout
