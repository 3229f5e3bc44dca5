"""Whether a work that is complete has failed."""

from __future__ import annotations

from typing import Any

from torch.distributed import Work


def has_failed(work: Any) -> bool:
    """Asked of the work's future: torch's own `Work.exception` and `is_success` print a warning
    that they are deprecated. gloo's sends and receives have no future; they become complete only
    in `wait()`, whose caller sees the error."""
    if type(work).exception is not Work.exception:
        return work.exception() is not None
    try:
        future = work.get_future()
        if not future.done():
            return False
    except Exception:
        return False
    try:
        future.value()
    except Exception:
        return True
    return False
