"""The place where a fault happens, as the actions see it."""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

from ..record.recorder import Recorder


class CannotHappen(Exception):
    """A fault cannot happen; the sentence says why. `here`: at another call it might."""

    def __init__(self, sentence: str, here: bool = False) -> None:
        super().__init__(sentence)
        self.here = here


class TargetGroup(Protocol):
    """A group of this rank, as faults see it."""

    ranks: tuple[int, ...]
    """Global ranks."""
    issued: int
    """Collectives that the program has called, not counting what faults have made of them."""
    postponed: deque[Any]
    """Calls that are made after the next one."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which a plan may call the group."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def barrier(self) -> Any: ...

    def place(self, seq: int) -> str:
        """`#17 of group "tp"`."""

    def siblings(self) -> Sequence[TargetGroup]:
        """The other groups of this rank that have more ranks than this one."""

    def make_call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make this call: recorded and checked as one of the program's own."""


@dataclass(frozen=True, slots=True)
class Context:
    """`arguments`: the action's. `frame`: the user's own, None where none is on the stack.
    `announce()` puts the fault on record, and is called just before it happens. `group`: of the
    call, or the default group; None before there is one."""

    arguments: Mapping[str, Any]
    frame: FrameType | None
    recorder: Recorder
    announce: Callable[[], None]
    group: TargetGroup | None


def at_users_line(frame: FrameType | None, source: str, names: Mapping[str, Any]) -> None:
    """Run one statement as if it stood on the line where `frame` stands: tracebacks, stacks and
    this layer itself then take what happens for the program's own."""
    space = dict(names)
    if frame is None:
        exec(compile(source, "<injected>", "exec"), space)  # noqa: S102 - a constant of our own
        return
    tree = ast.parse(source)
    ast.increment_lineno(tree, (frame.f_lineno or 1) - 1)
    own = frame.f_code
    code: CodeType = compile(tree, own.co_filename, "exec").replace(co_name=own.co_name)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=own.co_qualname)
    exec(code, space)  # noqa: S102 - the same
