"""distdebug: run any torch.distributed program and be told which rank went wrong and why.

`distdebug run` needs nothing of what is here. A program that is started in any other way may call
`distdebug.install(level="DETAIL")`, and has the checks inside its ranks, without a supervisor.
`distdebug.log.info("loss", value=...)` puts an event of the program into the log of its rank.
`distdebug.step(n)` says that step n begins, and `distdebug.inject(...)` makes it go wrong on
purpose; `distdebug.faults` reads, draws and prints faults. What a check raises in a rank is here,
too: `except distdebug.MismatchError`.

PYTEST_DONT_REWRITE: a rank has imported it before pytest comes to the plugins that are named.
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
    "not_replicated",
    "precheck",
    "replicated",
    "step",
]

__version__ = "0.1.0"


def install(level: str | None = None, run_dir: str | os.PathLike[str] | None = None) -> None:
    """Watch every process group that this process creates from now on.

    `level` is "OFF", "INFO" or "DETAIL" (default: TORCH_DISTRIBUTED_DEBUG, or INFO). The flight
    records are written to `run_dir`, the same folder for all ranks of a host; without it they are
    deleted when the process ends. Below `distdebug run`, or in a second call, only the level
    changes. Raises `distdebug.errors.UsageError` if there is no such level, if the folder cannot
    be made, or if it is called after init_process_group.
    """
    from .rank import torch_first  # noqa: F401 - it says why
    from .rank.api import install as begin

    begin(level, run_dir)


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Do what `torch.distributed.monitored_barrier` does, on every backend."""
    from .rank.api import barrier

    barrier(group, timeout, wait_all_ranks)


def precheck() -> AbstractContextManager[None]:
    """`with distdebug.precheck():` around an iteration: debug level DETAIL and all checks inside.

    After the block the run goes on with its own level and checks. All ranks put the block around
    the same calls. If one rank makes a call outside that others make inside, its group goes on
    without comparing calls before they are made. The block does not change how sends and receives
    are compared. Replicas are compared before and after each optimizer step inside. In a program
    that distdebug does not watch, it does nothing.
    """
    from .rank.api import precheck as begin

    return begin()


def replicated(what: Any, group: Any = None) -> None:
    """Say that a module's parameters, or a tensor, are the same on all ranks of a group.

    `--check replicas` then compares them, as it does a DDP model, whatever the program does with
    them: a difference is an error. `group` is a process group (default: the world). All ranks of
    the group call it for the same parameters before the first optimizer step. In a program that
    distdebug does not watch, it does nothing.
    """
    from .rank.api import say_replicated

    say_replicated(what, group)


def not_replicated(what: Any) -> None:
    """Say that a module's parameters, or a tensor, are each rank's own.

    `--check replicas` then leaves them out, on all groups. Call it before the first optimizer step.
    In a program that distdebug does not watch, it does nothing.
    """
    from .rank.api import say_not_replicated

    say_not_replicated(what)


def breakpoint(  # noqa: A001 - as torch's
    rank: int = 0, condition: bool | Callable[[], object] | None = None
) -> None:
    """Stop one rank of the world at this line; `distdebug attach` opens a prompt there.

    The rank stops only if `condition` is true; it may be a function, which is then called. The
    other ranks go on until they need this rank, and then wait for it. PYTHONBREAKPOINT works as
    for Python's own `breakpoint()`.
    """
    from .rank.api import stop, stops_on

    if stops_on(rank, condition):
        stop(sys._getframe(1))


def inject(spec: str) -> None:
    """Make a fault happen, as `--inject` does: `distdebug.inject("kill(rank=1) @ all_reduce#5")`.

    Call it on every rank before init_process_group, below `distdebug run` or after
    `distdebug.install()`. Raises `distdebug.errors.UsageError` if the text is not a fault, or if
    the process group exists already.
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
