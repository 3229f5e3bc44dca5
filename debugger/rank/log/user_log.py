"""`distdebug.log`, the program's own events in the log of its rank, and `distdebug.step`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ...record.log_file import at_least
from . import rank_log


class Log:
    """Log events of the program, each with its rank, its step and its line of code.

    Events from info on are always recorded; for trace and debug, and for what stderr shows,
    TORCH_CPP_LOG_LEVEL and TORCH_DISTRIBUTED_DEBUG decide. A field whose name every record has
    gets a `_` behind its name. In a program that distdebug does not watch, nothing is logged.
    """

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        self._fields = dict(fields or {})

    def __repr__(self) -> str:
        return f"<Log {self._fields}>"

    def bind(self, **fields: Any) -> Log:
        """A log whose events have these fields, too."""
        return Log({**self._fields, **fields})

    @staticmethod
    def step(number: int) -> None:
        """Begins a step, as `distdebug.step`: all events of this process carry it now."""
        step(number)

    def trace(self, event: str, /, **fields: Any) -> None:
        """Logs what is of use only to follow each single thing."""
        self._put(sys._getframe(1), event, "trace", fields)

    def debug(self, event: str, /, **fields: Any) -> None:
        """Logs what is of use to whoever looks for a fault."""
        self._put(sys._getframe(1), event, "debug", fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Logs what happens when all is well."""
        self._put(sys._getframe(1), event, "info", fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Logs what somebody should look at."""
        self._put(sys._getframe(1), event, "warning", fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Logs what went wrong."""
        self._put(sys._getframe(1), event, "error", fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._put(sys._getframe(1), event, "error", {"exc_info": True, **fields})

    def _put(self, frame: FrameType, event: str, level: str, fields: dict[str, Any]) -> None:
        if not at_least(level, "info") and not at_least(level, rank_log.file_level()):
            return
        step = of_program.current
        stepped = {} if step is None else {"step": step}
        given = rank_log.renamed({**stepped, **self._fields, **fields})
        place = rank_log.at((frame.f_code.co_filename, frame.f_lineno))
        rank_log.put(event, level, {**given, **place})


log = Log()


class NamedSteps:
    """The steps of this process's program, which may name them before the layer is there. Without
    a plan of faults nothing but a number is kept."""

    def __init__(self) -> None:
        self.current: int | None = None
        """The step that the program has named last; None before the first."""
        self.observer: Callable[[int], None] | None = None
        """Called on the program's own thread when a step begins."""


of_program = NamedSteps()


def step(number: int) -> None:
    """Say that step `number` begins now, in all threads of this process."""
    of_program.current = number
    if of_program.observer is not None:
        of_program.observer(number)
