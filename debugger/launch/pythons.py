"""The Python that runs the program: this one, or another, where distdebug has an environment of its
own, without torch.

Another one is asked, before any rank is started, for what the command line is checked against. That
takes a start of it, and imports no torch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder

from ..errors import UsageError
from ..hook import loading

OLDEST = (3, 10)
_QUESTION = """
import json, sys
from importlib.util import find_spec
found = [find_spec(name) for name in ("torch", "mpi4py")]
folders = [list(spec and spec.submodule_search_locations or ()) for spec in found]
print(json.dumps([sys.version_info[:2], sys.path, *folders]))
"""


@dataclass(frozen=True)
class Python:
    """`executable`: its path, as the user gave it; `path`: where it looks for modules; `torch` and
    `mpi4py`: the folders of these packages, none where it does not have them."""

    executable: str
    path: Sequence[str]
    torch: Sequence[str]
    mpi4py: Sequence[str]

    @property
    def is_this(self) -> bool:
        """Whether distdebug itself runs in it."""
        return self.executable == sys.executable


def this() -> Python:
    """The one in which distdebug itself runs."""
    path = loading.programs_path or sys.path
    return Python(sys.executable, path, _folders("torch", path), _folders("mpi4py", path))


def asked(executable: str) -> Python:
    """Asks a Python about itself. Raises UsageError: there is no such program, or it is no Python
    that distdebug can run in."""
    found = shutil.which(executable)
    if found is None:
        inside = os.path.join(executable, "bin", "python")
        meant = f": did you mean {inside}?" if os.path.exists(inside) else ""
        raise UsageError(f"--python {executable}: no such program{meant}")
    try:
        command, none = [executable, "-c", _QUESTION], subprocess.DEVNULL
        said = subprocess.check_output(command, stdin=none, stderr=none, timeout=60.0)
        version, path, torch, mpi4py = json.loads(said.splitlines()[-1])
        if tuple(version) >= OLDEST:
            return Python(executable, path, torch, mpi4py)
        what = f"it is Python {version[0]}.{version[1]}"
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError):
        what = "it does not answer as a Python does"
    raise UsageError(f"--python {executable}: {what}, and Python 3.10 or newer is needed")


def _folders(package: str, path: Sequence[str]) -> Sequence[str]:
    if package in sys.modules:
        spec = getattr(sys.modules[package], "__spec__", None)  # none in a test's fake
    else:
        spec = PathFinder.find_spec(package, path) or importlib.util.find_spec(package)
    return (spec and spec.submodule_search_locations) or ()
