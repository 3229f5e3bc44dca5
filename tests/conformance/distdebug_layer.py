"""Puts the layer around every group in the processes of torch's own test suite.

The suite (`torch_suite.py`) imports this module first in every process, `DIST_PLUGIN` names it: in
the one that runs the tests, and again in each rank, which a fork server starts with torch already
imported, so that no import hook could see it come. Faults of the layer fail the test.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from distdebug.rank.install import RUN_DIRECTORY, install


def _make_run_directory() -> None:
    path = Path(tempfile.mkdtemp(prefix="distdebug-conformance-"))
    for name in ("ranks", "logs", "stacks"):
        (path / name).mkdir(mode=0o700)
    os.environ[RUN_DIRECTORY] = str(path)
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)


if RUN_DIRECTORY not in os.environ:
    _make_run_directory()
os.environ["DISTDEBUG_RAISE_OWN_FAULTS"] = "1"
install()
