"""What is released, and environments in which it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support import installed
from tests.support.installed import Environment

_BUILD = "import sys\nfrom setuptools import build_meta\nbuild_meta.build_{kind}(sys.argv[1])"


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with sdist and wheel: that of `make dist`, or else they are built in the same way,
    the wheel from the sdist."""
    if os.environ.get("DISTDEBUG_DIST"):
        return Path(os.environ["DISTDEBUG_DIST"])
    folder = tmp_path_factory.mktemp("released")
    dist = folder / "dist"
    _build("sdist", installed.copy_of_tree(folder / "tree"), dist)
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    _build("wheel", folder / sdist.name.removesuffix(".tar.gz"), dist)
    return dist


def _build(kind: str, tree: Path, into: Path) -> None:
    command = [sys.executable, "-c", _BUILD.format(kind=kind), str(into)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def wheel(released: Path) -> Path:
    (found,) = released.glob("*.whl")
    return found


@pytest.fixture(scope="session", params=["wheel", "editable", "strict"])
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """One with distdebug, in each of the three ways."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "wheel":
        return installed.make(folder / "venv", str(request.getfixturevalue("wheel")))
    tree = str(installed.copy_of_tree(folder / "tree"))
    mode = ["--config-settings", "editable_mode=strict"] if request.param == "strict" else []
    return installed.make(folder / "venv", *mode, "-e", tree)
