"""`debugger.inject`: faults that a program asks for itself, before its first process group."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from ..errors import UsageError
from ..faults import adding
from ..faults.plan import VARIABLE, Fault
from ..faults.spec import SpecError, parse
from ..record.wording import printable
from . import install as layer

_asked: list[Fault] = []


def inject(spec: str) -> None:
    """See `debugger.inject`."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        raise UsageError(
            "call debugger.inject() before torch.distributed.init_process_group(): a group that "
            "exists already cannot be made to go wrong"
        )
    world_size = os.environ.get("WORLD_SIZE", "")
    known = world_size.isascii() and world_size.isdigit() and len(world_size) < 10
    try:
        _asked.append(parse(spec, 0, int(world_size) if known else None))
    except SpecError as error:
        raise UsageError("\n".join([f"debugger.inject: {error}", *error.below])) from None
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
        "debugger.install() before init_process_group()"
    )
    for fault in _asked:
        sys.stderr.write(f"distdebug: NOT INJECTED: {printable(fault.text)}: {why}\n")
    _asked.clear()


def _take() -> None:
    """The program makes its first group."""
    made = layer.installed()
    if made is not None:
        write_plan(made.directory)
        made.take_faults()


def write_plan(directory: Path) -> None:
    """What was asked for is in the plan of this run directory from now on. Raises UsageError."""
    if not _asked:
        return
    try:
        adding.add(directory, _asked)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the plan of faults in {directory} cannot be written: {error}") from None
    _asked.clear()
    os.environ[VARIABLE] = "1"
