"""Puts a function around one of somebody else's, so that nobody who asks can tell them apart."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_SKIPPED = " <importlib._bootstrap>"
"""Ends the file name of code whose frames `warnings` does not count.

`warnings.warn(..., stacklevel=2)` in a wrapped function must name the line that called it, not our
wrapper: otherwise each warning says another file, once for all callers, and a filter by module
fails. Python skips the frames of its import system, which it knows by two words in the file name,
in C as in Python and in all versions from 3.3 on. Rejected: `skip_file_prefixes` is for who warns,
and new in 3.12; a function in place of `warnings.warn` is not met by who has imported that before;
and a wrapper without a frame can only be written in C. The path stays in front, so that readers of
stacks, and torch.compile, know the file as ours.
"""


def around(original: Callable[..., Any]) -> Callable[[Function], Function]:
    """Returns a decorator for a function that calls `original`: it gets that one's name, signature
    and documentation, and `warnings` does not count its frame."""

    def decorate(ours: Function) -> Function:
        functools.update_wrapper(uncounted(ours), original)
        return ours

    return decorate


def uncounted(ours: Function) -> Function:
    """Has `warnings` not count the frames of this function, which calls an original for another."""
    if isinstance(ours, FunctionType) and not ours.__code__.co_filename.endswith(_SKIPPED):
        file = ours.__code__.co_filename + _SKIPPED
        ours.__code__ = ours.__code__.replace(co_filename=file)
    return ours
