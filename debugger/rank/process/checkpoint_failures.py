"""The ranks that failed in a checkpoint of torch.distributed.checkpoint, which gathers what any
rank raised, and has all of them raise one exception, the right ones as well as the wrong one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def failures_of(error: BaseException) -> Mapping[int, BaseException]:
    """Returns the exceptions of the ranks that failed, by their numbers in the group of the
    checkpoint; nothing, if the error is no such exception. The module is the program's to import.
    """
    module = sys.modules.get("torch.distributed.checkpoint.api")
    gathered = getattr(module, "CheckpointException", None)
    if gathered is None or not isinstance(error, gathered):
        return {}
    failures: Any = getattr(error, "failures", None)
    if not isinstance(failures, dict):
        return {}
    return {
        rank: pair[0]
        for rank, pair in failures.items()
        if isinstance(rank, int) and isinstance(pair, tuple) and isinstance(pair[0], BaseException)
    }
