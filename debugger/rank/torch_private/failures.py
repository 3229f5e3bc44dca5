"""Exceptions that leave torch's functions of communication, of DDP and of optimisers.

None of these functions is wrapped for it: torch itself describes a call of torch.distributed that
failed for its log, and is within a `record_function` in the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.autograd.profiler import record_function
from torch.distributed import c10d_logger

from .probe import Private, WatchedPart, before

FAILURES = WatchedPart(
    "caught_exceptions",
    "exceptions that the program catches are not told",
    Private("torch.distributed.c10d_logger", "_get_msg_dict", ("func_name",)),
    Private("torch.autograd.profiler", "record_function.__exit__", ("self", "exc_type")),
)
_STEP = "Optimizer.step#"
_NOTED = (_STEP, "DistributedDataParallel.forward")


@FAILURES
def on_failures(note: Callable[[str, BaseException | None], None]) -> None:
    """`note(function, error)` hears of each exception that leaves one of them."""

    def describes(function: Any, *_: Any, **__: Any) -> None:
        note(str(function), sys.exc_info()[1])

    def leaves(function: Any, _: Any = None, error: Any = None, *__: Any) -> None:
        if error is not None and function.name.startswith(_NOTED):
            note(function.name.removeprefix(_STEP), error)

    before(c10d_logger, "_get_msg_dict", describes)
    before(record_function, "__exit__", leaves)
