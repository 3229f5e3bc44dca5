"""What run.json says of the machine and the software that a run was made with."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from importlib import metadata
from typing import Any

from .. import __version__


def of_this_process() -> dict[str, Any]:
    """The supervisor's versions, host and start."""
    versions = {}
    for name in ("torch", "structlog", "py-spy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "distdebug": __version__,
        "python": platform.python_version(),
        "versions": versions,
        "host": platform.node(),
        "platform": platform.platform(),
        "pid": os.getpid(),
        "started_ns": time.time_ns(),
    }
