"""Reaches every Python process below `distdebug`: by its environment, not by its code.

The folder `site` goes first on PYTHONPATH, so that Python's start-up imports `sitecustomize` from
there. See `environment`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).resolve().parent / "site"


def environment(
    base: Mapping[str, str],
    run_directory: Path,
    launcher: str,
    streams: tuple[int, int] = (1, 2),
) -> dict[str, str]:
    """The environment for a command whose Python processes are to be observed. `streams`: the
    descriptors that the command gets as its stdout and stderr.

    `launcher`: "torchrun" when the command is torchrun, whose own process is no rank whatever its
    environment says; "" for any other command.
    """
    changed = dict(base)
    before = changed.get("PYTHONPATH", "")
    # An empty entry is the current directory, but an empty variable has none.
    paths = [one for one in before.split(os.pathsep) if one != str(SITE)] if before else []
    changed["PYTHONPATH"] = os.pathsep.join([str(SITE), *paths])
    changed["DISTDEBUG_RUN_DIR"] = str(run_directory)
    changed["DISTDEBUG_RUN_STARTED"] = f"{time.time():.3f}"
    changed["DISTDEBUG_LAUNCHER"] = launcher
    changed["DISTDEBUG_STREAMS"] = ",".join(map(_identity, streams))
    changed.pop("DISTDEBUG_OUTPUT", None)
    changed.pop("DISTDEBUG_RANK_PID", None)
    changed.pop("DISTDEBUG_HEARD", None)
    return changed


def drained(streams: tuple[int, int]) -> dict[str, str]:
    """The variables of a command whose ranks' output is drained: what they would have for their
    own without us, which is one place for both or two, and terminals or not."""
    together = streams[0] != streams[1] and _identity(streams[0]) == _identity(streams[1])
    kinds = (together, *map(os.isatty, streams))
    return {"DISTDEBUG_OUTPUT": "".join(str(int(one)) for one in kinds)}


def _identity(descriptor: int) -> str:
    """Returns what a descriptor leads to, so that a rank can tell whether its output still goes
    there."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return "closed"
    return f"{status.st_dev}:{status.st_ino}"
