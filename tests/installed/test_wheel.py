"""The wheel in a clean environment, away from the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import installed
from tests.support.installed import Environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
TESTS = """
import pytest, torch, torch.distributed as dist

@pytest.mark.distributed(nproc=2)
def test_right(dist_rank):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2

@pytest.mark.distributed(nproc=2)
def test_wrong(dist_rank):
    if dist_rank.rank:
        dist.broadcast(torch.ones(1), 0)
    dist.all_reduce(torch.ones(1))
"""
ALL_MODULES = """
import distcore, distdebug, pkgutil
for package in (distcore, distdebug):
    for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        found = one.module_finder.find_spec(one.name)
        compile(found.loader.get_source(one.name), found.origin, "exec")
        print(one.name)
"""


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return installed.make(tmp_path_factory.mktemp("clean") / "venv", str(wheel))


def test_names_at_the_top(clean: Environment, tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import distribution; "
        "print(*sorted({file.parts[0] for file in distribution('distdebug').files}))"
    )
    done = clean.run("python", "-c", code, cwd=tmp_path)
    found = [one for one in done.stdout.split() if "dist-info" not in one and one[0] not in ".b"]
    assert found == ["__pycache__", "_distdebug_entry.py", "distcore", "distdebug"], done.stdout
    done = clean.run("python", "-c", "import debugger", cwd=tmp_path)
    assert "No module named 'debugger'" in done.stdout


def test_imports(clean: Environment, tmp_path: Path) -> None:
    """Also of each module's source by that Python, which may be an older one."""
    done = clean.run("python", "-c", ALL_MODULES, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert {"distcore.backend", "distdebug.tui.app", "distdebug.cli"} <= set(done.stdout.split())


def test_the_planted_bug_from_a_folder_of_the_users(clean: Environment, tmp_path: Path) -> None:
    script = installed.ROOT / "fixtures" / "demo.py"
    done = clean.run("distdebug", "run", "-n", "4", str(script), cwd=tmp_path)
    assert done.returncode == 91, done.stdout
    assert "demo.py:22 in train_step   <- look here" in done.stdout
    assert (tmp_path / ".distdebug" / "latest" / "report.json").exists()
    done = clean.run("distdebug", "report", cwd=tmp_path)
    assert "exit code 91" in done.stdout


def test_the_plugin(clean: Environment, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = clean.run("pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "MISMATCH  ranks disagree at collective #0" in done.stdout


def test_versions_agree(clean: Environment, wheel: Path, tmp_path: Path) -> None:
    said = clean.run("distdebug", "--version", cwd=tmp_path).stdout.split()[-1]
    assert wheel.name.startswith(f"distdebug-{said}-"), said
