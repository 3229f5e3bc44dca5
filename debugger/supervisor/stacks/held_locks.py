"""Finds the lock that a thread waits for, and the thread inside it, by their stacks and the source.

A lock of Python's does not say who holds it, and a flight record knows nothing of locks. But who
stands in the body of `with lock:` is inside it; that it is the same lock is read from its name, in
the same file, so that this is evidence, and no proof.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...record.safe_text import clean
from . import stack_tree
from .source_text import text_of
from .stacks import Frame, ThreadStack


@dataclass(frozen=True, slots=True)
class HeldLock:
    """`name` is the lock as the source writes it; `inside`: what the holder's line has called, and
    that line itself, innermost first."""

    name: str
    waiter: Frame
    holder: Frame
    inside: tuple[Frame, ...]

    def __str__(self) -> str:
        called = stack_tree.own_frames(self.inside)
        within = f", in {called[0].function}" if called and called[0] != self.holder else ""
        return clean(
            f"a thread waits for `{self.name}` at {_place(self.waiter)}, and another one is inside "
            f"`with {self.name}` at {_place(self.holder)}{within}",
            400,
        )


def held_lock(threads: Sequence[ThreadStack], late: ThreadStack | None = None) -> HeldLock | None:
    """The first lock of this process that a thread waits for while another one is inside it.

    Where each of two waits for what the other one holds, it is `late` who is said to wait: where
    that one stands is what the finding is about.
    """
    for waiter in sorted(threads, key=lambda thread: thread is not late):
        found = stack_tree.users_frame(waiter.frames)
        if found is None or not stack_tree.waits_for_lock(waiter):
            continue
        frame = found[0]
        for name in _taken_at(frame):
            for holder in threads:
                if holder is waiter:
                    continue
                for index, other in enumerate(holder.frames):
                    if other.file == frame.file and name in _entered_at(other):
                        return HeldLock(name, frame, other, holder.frames[: index + 1])
    return None


def _place(frame: Frame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line} in {frame.function}"


def _taken_at(frame: Frame) -> Iterator[str]:
    """Yields the locks that are waited for on this line: `with lock:`, `lock.acquire()`."""
    for block in _blocks(frame.root + frame.file):
        if block.first <= frame.line < block.body:
            yield block.name


def _entered_at(frame: Frame) -> set[str]:
    """The locks in whose body this line lies."""
    blocks = _blocks(frame.root + frame.file)
    return {block.name for block in blocks if block.body <= frame.line <= block.last}


@dataclass(frozen=True, slots=True)
class _Block:
    name: str
    first: int
    body: int
    last: int


@lru_cache(maxsize=64)
def _blocks(path: str) -> tuple[_Block, ...]:
    """Returns where the file takes locks: `with name:`, and `name.acquire()`, which has no body."""
    try:
        tree = ast.parse(text_of(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            body, last = node.body[0].lineno, node.body[-1].end_lineno or 0
            for item in node.items:
                if isinstance(item.context_expr, ast.Name | ast.Attribute):
                    name = ast.unparse(item.context_expr)
                    found.append(_Block(name, item.context_expr.lineno, body, last))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "acquire"
            and isinstance(node.func.value, ast.Name | ast.Attribute)
        ):
            end = (node.end_lineno or node.lineno) + 1
            found.append(_Block(ast.unparse(node.func.value), node.lineno, end, 0))
    return tuple(found)
