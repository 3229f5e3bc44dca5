"""The origins of an exception: those in a group of exceptions, and those that it was raised for.

`asyncio.TaskGroup` and its like raise a group, whose own text and line say nothing of what went
wrong; trainers wrap what their loop raises in an error of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors.in_ranks import FindingRaised
from .lost_connections import is_lost

_MOST = 100
"""The most exceptions of one chain, and of all groups together: a program may raise thousands."""


def leaf_of(error: BaseException) -> BaseException:
    """The exception in a group that says most: a finding, else the first that is no lost
    connection, else the first. Any other exception is its own leaf."""
    leaves = list(_leaves(error))
    for wanted in (
        lambda one: isinstance(one, FindingRaised) or hasattr(one, "finding"),
        lambda one: not is_lost(one),
    ):
        if found := next(filter(wanted, leaves), None):
            return found
    return leaves[0] if leaves else error


def came_of(error: BaseException) -> Iterator[BaseException]:
    """The exceptions for which this one was raised, or while they were handled, nearest first.
    `from None` hides them from the reader, not from the record."""
    seen = {id(error)}
    while len(seen) < _MOST:
        before = error.__cause__ or error.__context__
        if before is None or id(before) in seen:
            return
        seen.add(id(before))
        error = before
        yield leaf_of(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """By their shape: Python 3.10 has no groups of its own, but a package that brings them."""
    waiting, left = [error], _MOST
    while waiting and left:
        left -= 1
        one = waiting.pop()
        inner = getattr(one, "exceptions", None)
        if isinstance(inner, tuple) and inner and all(isinstance(x, BaseException) for x in inner):
            waiting.extend(reversed(inner[:_MOST]))
        else:
            yield one
