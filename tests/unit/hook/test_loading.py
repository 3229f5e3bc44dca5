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


@pytest.mark.parametrize("end", ["pass", "raise ValueError"])
@pytest.mark.parametrize("begin", ["enable", "disable"])
def test_the_import_of_torch_is_not_interrupted_by_the_collector(
    begin: str, end: str, tmp_path: Path
) -> None:
    """Which is afterwards as it was, and walks none of what the import has made."""
    (tmp_path / "torch.py").write_text(f"import gc\nduring = gc.isenabled()\nmade = [[]]\n{end}\n")
    code = f"""
import contextlib, gc, importlib.util, sys
spec = importlib.util.spec_from_file_location("_distdebug.hook.loading", {loading.__file__!r})
loading = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loading)
gc.{begin}()
loading.when_imported("torch", lambda torch: print(torch.during, gc.isenabled()))
with contextlib.suppress(ValueError):
    import torch
    print(any(one is torch.made for one in gc.get_objects(generation=2)))
print(gc.isenabled(), gc.get_freeze_count())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    on = begin == "enable"
    told = ["False", "False", str(on)] if end == "pass" else []
    assert done.stdout.split() == [*told, str(on), "0"], done.stderr
