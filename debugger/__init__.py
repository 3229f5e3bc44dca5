"""distdebug: run any torch.distributed program and be told which rank went wrong and why.

`distdebug run` needs nothing of what is here. A program that is started in any other way may call
`distdebug.install(level="DETAIL")`, and has the checks inside its ranks, without a supervisor.
`distdebug.log.info("loss", value=...)` puts an event of the program into the log of its rank.
`distdebug.step(n)` says that step n begins, and `distdebug.inject(...)` makes it go wrong on
purpose; `distdebug.faults` reads, draws and prints faults. What a check raises in a rank is here,
too: `except distdebug.MismatchError`.
"""

from __future__ import annotations

import os
import sys

# Nothing of these is used while the program runs, and every process of ours imports this package:
# the smallest one, which drains what ranks print, starts sooner without `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from datetime import timedelta
    from typing import Any

    from . import faults
    from .rank.log.user_log import log, step

__all__ = [
    "__version__",
    "breakpoint",
    "faults",
    "inject",
    "install",
    "log",
    "monitored_barrier",
    "precheck",
    "step",
]

__version__ = "0.1.0"


def install(level: str | None = None, run_dir: str | os.PathLike[str] | None = None) -> None:
    """Watch every process group that this process makes from now on.

    `level` is "OFF", "INFO" or "DETAIL", by default that of TORCH_DISTRIBUTED_DEBUG, or INFO. In
    `run_dir`, which all ranks of a host should share, the flight records are kept; by default they
    go with the processes. Below `distdebug run`, and when called again, only the level changes.
    Raises `distdebug.errors.UsageError` for another level, where the directory cannot be made, and
    after init_process_group.
    """
    from .rank import torch_first  # noqa: F401 - it says why
    from .rank.api import install as begin

    begin(level, run_dir)


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """`torch.distributed.monitored_barrier`, which `install` opens to every backend."""
    from .rank.api import barrier

    barrier(group, timeout, wait_all_ranks)


def precheck() -> AbstractContextManager[None]:
    """`with distdebug.precheck():` around an iteration: debug level DETAIL and all checks inside.

    What the run was asked for holds again behind it. All ranks put it around the same calls; where
    one makes a call outside that others make inside, its group goes on without the agreement of
    DETAIL. Point-to-point messages are compared as at the level outside. Replicas are compared
    before and after each optimizer step inside. In a program that is not watched it does nothing.
    """
    from .rank.api import precheck as begin

    return begin()


def breakpoint(  # noqa: A001 - as torch's
    rank: int = 0, condition: bool | Callable[[], object] | None = None
) -> None:
    """Stop on one rank of the world, at the line of the call; `distdebug attach` leads there.

    `condition`, or what it returns when it is called, decides on that rank whether to stop. The
    other ranks go on until they need it, and wait then for as long as it stands. PYTHONBREAKPOINT
    is honoured as by Python's own `breakpoint()`.
    """
    from .rank.api import stop, stops_on

    if stops_on(rank, condition):
        stop(sys._getframe(1))


def inject(spec: str) -> None:
    """Make it go wrong: `distdebug.inject("kill(rank=1) @ all_reduce#5")`, as `--inject` takes it.

    Below `distdebug run`, and in a program that calls `distdebug.install()`: before
    init_process_group, and on every rank alike. Raises `distdebug.errors.UsageError` for what is no
    fault, and where it comes too late.
    """
    from .rank import torch_first  # noqa: F401 - it says why
    from .rank.api import inject as ask

    ask(spec)


def __getattr__(name: str) -> Any:
    """Loads what costs nothing until it is asked for: `distdebug.log`, for the program's own
    events, `distdebug.step(n)`, which says that step n of its training begins, and
    `distdebug.faults`."""
    if name == "log":
        from .rank.log import user_log

        globals()["log"] = user_log.log
        return user_log.log
    if name == "step":
        from .rank.log import user_log

        globals()["step"] = user_log.step
        return user_log.step
    if name == "faults":
        from importlib import import_module

        return import_module(f"{__name__}.faults")
    if name[:1].isupper():  # an error: nobody asks for one by chance, and has torch imported
        from . import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
