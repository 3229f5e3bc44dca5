"""Our finder stands before those that come later: pytest's rewrites whatever a wheel with a plugin
has, and would find the program's modules by the names of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distdebug.hook import loading

CODE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_distdebug.hook.loading", sys.argv[1])
loading = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loading)

class Later:
    def find_spec(self, name, path=None, target=None):
        if name == "distcore":
            return importlib.util.spec_from_file_location(name, "of_the_program.py")

finder = loading.installed()
sys.meta_path.insert(0, Later())
print(importlib.util.find_spec("distcore").origin)
with loading.core:
    print(importlib.util.find_spec("distcore").origin)
assert loading.installed() is finder is sys.meta_path[0]
assert sum(isinstance(one, loading.Finder) for one in sys.meta_path) == 1
"""


def test_a_finder_that_came_later_does_not_hide_ours(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(Path(loading.__file__).resolve())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    ours = Path(loading.__file__).resolve().parents[2] / "distcore" / "__init__.py"
    assert done.stdout.split() == [str(tmp_path / "of_the_program.py"), str(ours)], done.stderr


@pytest.mark.parametrize("safe", ["", "1"], ids=["script's folder", "PYTHONSAFEPATH"])
def test_a_program_s_first_folder_stays_its_first(safe: str, tmp_path: Path) -> None:
    """What Python puts in front for our script goes, where it has done so."""
    tells = "import atexit, sys\natexit.register(lambda: print(sys.path[0]))\n"
    (tmp_path / "sitecustomize.py").write_text(tells)
    done = subprocess.run(
        loading.command("record.kinds", shared=True),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": safe},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "has no attribute 'main'" in done.stderr, done.stderr
    assert done.stdout.strip() == str(tmp_path)
