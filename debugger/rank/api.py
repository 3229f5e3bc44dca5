"""The layer in a program that distdebug did not start: `debugger.install()`."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..errors import UsageError
from ..record.debug_levels import LEVELS
from ..record.run_directory import RunDirectory
from ..record.secret_words import masked
from . import asked_faults
from . import install as layer
from .log import debug_level

FOLDERS = ("ranks", "logs", "stacks")
"""What the layer writes into in a run directory."""


def install(level: str | None, run_dir: str | os.PathLike[str] | None) -> None:
    """See `debugger.install`."""
    name = level if level is None else str(level).upper()
    if name is not None and name not in LEVELS:
        raise UsageError(f"level {level!r} is none of {', '.join(LEVELS)}")
    if layer.installed():
        if name is not None:
            debug_level.choose(name)
        return
    if dist.is_initialized():
        raise UsageError(
            "call debugger.install() before torch.distributed.init_process_group(): "
            "a group that exists already cannot be watched"
        )
    if not isinstance(run_dir, str | os.PathLike | None):
        raise UsageError(f"run_dir is the path of a directory, not {run_dir!r}")
    directory = _directory(os.fspath(run_dir or os.environ.get(layer.RUN_DIRECTORY) or "") or None)
    asked = name or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper()
    if asked in LEVELS:
        os.environ[debug_level.LEVEL] = asked
    asked_faults.write_plan(directory)
    layer.install(str(directory))
    if name is not None and layer.installed():
        debug_level.choose(name)


def barrier(group: Any, timeout: timedelta | None, wait_all_ranks: bool) -> None:
    """See `debugger.monitored_barrier`."""
    dist.monitored_barrier(group, timeout, wait_all_ranks)


def stops_on(rank: int, condition: bool | Callable[[], object] | None) -> bool:
    """See `debugger.breakpoint`."""
    if not isinstance(rank, int):
        raise UsageError(f"a breakpoint's rank is a number, not {rank!r}")
    own = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
    if own != rank:
        return False
    return bool(condition() if callable(condition) else condition is None or condition)


def _directory(asked: str | None) -> Path:
    """The run directory, there; one that nobody asked for goes with the process."""
    if asked is None:
        path = Path(tempfile.mkdtemp(prefix="distdebug-"))
        owner = os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # not in a forked child
                shutil.rmtree(path, ignore_errors=True)

        atexit.register(remove)  # before the layer registers its own end, so it runs after that
    else:
        path = Path(os.path.abspath(asked))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (path, *(path / name for name in FOLDERS)):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot keep a record in {asked}: {(error.strerror or str(error)).lower()}"
        ) from None
    directory = RunDirectory(path)
    if not directory.run_json.exists():  # now `distdebug report` knows it for a run
        directory.write_json(
            directory.run_json.name,
            {
                "command": masked(sys.orig_argv),
                "host": platform.node(),
                "started_ns": time.time_ns(),
                "supervised": False,
            },
        )
    return path
