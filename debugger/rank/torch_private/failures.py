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

from .modules import Wrapped
from .probe import Part, Private, patch

FAILURES = Part(
    "caught_exceptions",
    "exceptions that the program catches are not told",
    Private("torch.distributed.c10d_logger", "_get_msg_dict", ("func_name",)),
    Private("torch.autograd.profiler", "record_function.__exit__", ("self", "exc_type")),
)
_FORWARD = "DistributedDataParallel.forward"
_STEP = "Optimizer.step#"


@FAILURES
def on_failures(note: Callable[[str, BaseException | None], None]) -> None:
    """`note(function, error)` hears of each exception that leaves one of them."""

    def describing(original: Wrapped) -> Wrapped:
        def describe(func_name: Any, *args: Any, **kwargs: Any) -> Any:
            note(str(func_name), sys.exc_info()[1])
            return original(func_name, *args, **kwargs)

        return describe

    def leaving(original: Wrapped) -> Wrapped:
        def leave(self: Any, exc_type: Any, *args: Any) -> Any:
            if exc_type is not None and (self.name == _FORWARD or self.name.startswith(_STEP)):
                note(self.name.removeprefix(_STEP), args[0])
            return original(self, exc_type, *args)

        return leave

    patch(c10d_logger, "_get_msg_dict", describing)
    patch(record_function, "__exit__", leaving)
