"""The functions that programs call: `distdebug.install()` in one that distdebug did not start, and
`distdebug.inject()`, for faults that a program asks for itself, before its first process group."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from ..errors import UsageError
from ..faults import plan
from ..faults.plan import VARIABLE, Fault
from ..faults.spec import SpecError, parse
from ..record.log_file import DEBUG_LEVELS
from ..record.runs.run_directory import RunDirectory
from ..record.safe_text import whole_number
from ..record.secret_words import masked
from ..record.wording import printable
from . import install as layer
from .log import debug_level

FOLDERS = ("ranks", "logs", "stacks")
"""The folders of a run directory that the layer writes into."""

_asked: list[Fault] = []
"""The faults that the program has asked for and that are in no plan yet."""


def install(level: str | None, run_dir: str | os.PathLike[str] | None) -> None:
    """See `distdebug.install`."""
    name = level if level is None else str(level).upper()
    if name is not None and name not in DEBUG_LEVELS:
        raise UsageError(f"level {level!r} is none of {', '.join(DEBUG_LEVELS)}")
    made = layer.installed()
    if made is not None:
        if name is not None:
            made.level.choose(name)
        return
    if dist.is_initialized():
        raise UsageError(
            "call distdebug.install() before torch.distributed.init_process_group(): "
            "a group that exists already cannot be watched"
        )
    if not isinstance(run_dir, str | os.PathLike | None):
        raise UsageError(f"run_dir is the path of a directory, not {run_dir!r}")
    directory = _directory(os.fspath(run_dir or os.environ.get(layer.RUN_DIRECTORY) or "") or None)
    asked = name or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper()
    if asked in DEBUG_LEVELS:
        os.environ[debug_level.LEVEL] = asked
    _write_plan(directory)
    made = layer.install(str(directory))
    if name is not None and made is not None:
        made.level.choose(name)


def barrier(group: Any, timeout: timedelta | None, wait_all_ranks: bool) -> None:
    """See `distdebug.monitored_barrier`."""
    dist.monitored_barrier(group, timeout, wait_all_ranks)


def precheck() -> contextlib.AbstractContextManager[None]:
    """See `distdebug.precheck`."""
    made = layer.installed()
    if made is None or made.prechecks is None:
        return contextlib.nullcontext()
    return made.prechecks.within()


def say_replicated(what: Any, group: Any) -> None:
    """See `distdebug.replicated`."""
    made = layer.installed()
    if made is not None:
        made.replicas.say(what, dist.group.WORLD if group is None else group)


def say_not_replicated(what: Any) -> None:
    """See `distdebug.not_replicated`."""
    made = layer.installed()
    if made is not None:
        made.replicas.say(what, None)


def stops_on(rank: int, condition: bool | Callable[[], object] | None) -> bool:
    """See `distdebug.breakpoint`."""
    if not isinstance(rank, int):
        raise UsageError(f"a breakpoint's rank is a number, not {rank!r}")
    own = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
    if own != rank:
        return False
    return bool(condition() if callable(condition) else condition is None or condition)


def stop(frame: FrameType) -> None:
    """Stop at this frame. Must be the caller's last act."""
    made = layer.installed()
    if made is not None:
        made.breakpoints.stop_or_other(frame)
    else:
        sys.__breakpointhook__()


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


def inject(spec: str) -> None:
    """See `distdebug.inject`."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        raise UsageError(
            "call distdebug.inject() before torch.distributed.init_process_group(): a group that "
            "exists already cannot be made to go wrong"
        )
    try:
        _asked.append(parse(spec, 0, whole_number(os.environ.get("WORLD_SIZE"))))
    except SpecError as error:
        raise UsageError("\n".join([f"distdebug.inject: {error}", *error.below])) from None
    if len(_asked) > 1:
        return
    atexit.register(_tell_of_the_rest)
    made = layer.installed()
    if made is not None:
        made.groups.before_default_group(_take)


def _tell_of_the_rest() -> None:
    """At the end of the process: nobody else knows of what was asked for in vain."""
    why = (
        "the program has made no process group"
        if layer.installed()
        else "nothing observes this process; start it with `distdebug run`, or call "
        "distdebug.install() before init_process_group()"
    )
    for fault in _asked:
        sys.stderr.write(f"distdebug: NOT INJECTED: {printable(fault.text)}: {why}\n")
    _asked.clear()


def _take() -> None:
    """The program makes its first group."""
    made = layer.installed()
    if made is not None:
        _write_plan(made.directory)
        made.take_faults()


def _write_plan(directory: Path) -> None:
    """Adds the faults that were asked for to the plan of this run directory. Raises UsageError."""
    if not _asked:
        return
    try:
        plan.add(directory, _asked)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the plan of faults in {directory} cannot be written: {error}") from None
    _asked.clear()
    os.environ[VARIABLE] = "1"
