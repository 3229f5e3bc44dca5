"""Environments with distdebug installed as a user may have it: from the wheel, or editable.

torch is a gigabyte, so each environment has links to that of the Python which runs the tests, or of
TORCH_PYTHON, and nothing else from there: pip installs all else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import runs

ROOT = Path(__file__).parents[2]
TORCH_PYTHON = os.environ.get("TORCH_PYTHON") or sys.executable
LIMIT_S = 600.0
NOT_OF_THE_TREE = (
    *(".git", ".venv*", ".*_cache", ".hypothesis", ".distdebug", "__pycache__", "*.py[cod]"),
    *("*.egg-info", "build", "dist", ".gpu-wheels", "gpu-results", "shared", "*.distdebug.tar.gz"),
)
"""What .gitignore has, and git itself."""
# Prints the folder of the packages, and what torch and numpy (without which torch warns), and what
# they need, have there.
_OF_TORCH = """
import re, sysconfig
from importlib.metadata import PackageNotFoundError, distribution
found, todo = {}, ["torch", "numpy"]
while todo:
    name = re.sub("[-_.]+", "-", todo.pop()).lower()
    if name in found:
        continue
    try:
        found[name] = distribution(name)
    except PackageNotFoundError:
        continue  # for another system, or an extra
    for line in found[name].requires or ():
        if "extra ==" not in line:
            todo.append(re.match("[A-Za-z0-9._-]+", line)[0])
print(sysconfig.get_path("purelib"))
tops = {file.parts[0] for one in found.values() for file in one.files or ()}
print(*sorted(tops - {"..", "__pycache__"}), sep=chr(10))
"""
_COMMAND = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


def copy_of_tree(folder: Path) -> Path:
    """The repository as a fresh clone has it."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_OF_THE_TREE), symlinks=True)
    return folder


@dataclass(frozen=True)
class Environment:
    """A Python with torch, pytest and distdebug."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def run(
        self,
        *command: str | Path,
        cwd: Path,
        extra: dict[str, str] | None = None,
        limit_s: float = LIMIT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment to its end, stdout and stderr together."""
        program, *arguments = map(str, command)
        environment = runs.environment({"OMP_NUM_THREADS": "1", **(extra or {})})
        if extra is None or "PYTHONPATH" not in extra:
            environment.pop("PYTHONPATH", None)
        for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "CI"):
            environment.pop(name, None)
        environment["PATH"] = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env=environment,
            timeout=limit_s,
            check=False,
        )


def make(folder: Path, *what: str) -> Environment:
    """A new environment; pip is told to install `what` there, beside torch and pytest."""
    subprocess.run([TORCH_PYTHON, "-m", "venv", str(folder)], check=True)
    made = Environment(folder)
    asked = subprocess.run([TORCH_PYTHON, "-c", _OF_TORCH], check=True, capture_output=True)
    packages, *names = asked.stdout.decode().split("\n")[:-1]
    for name in names:
        if not (made.packages / name).exists():
            (made.packages / name).symlink_to(Path(packages) / name)
    torchrun = folder / "bin" / "torchrun"
    torchrun.write_text(
        _COMMAND.format(python=made.python, module="torch.distributed.run", function="main")
    )
    torchrun.chmod(0o755)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["-c", str(ROOT / "constraints.txt")]
    done = made.run("python", *pip, *constraints, "pytest", *what, cwd=folder)
    assert done.returncode == 0, done.stdout
    return made
