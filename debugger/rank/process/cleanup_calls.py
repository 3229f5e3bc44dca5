"""Puts on record that a collective is called while an exception is on its way out.

`finally: dist.barrier()`, `finally: dist.destroy_process_group()` and `except Exception:
dist.barrier(); raise` run before Python tells anybody of the exception, and to the other ranks look
like a call that does not fit, or like an early end.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Callable
from traceback import walk_tb
from types import FrameType

from ...record.notes import UnwindingNote
from ..record import call_site
from ..record.exception_text import name_of, stack_of, titled
from ..record.recorder import ORDINARY, Recorder
from .exceptions import Exceptions, users_site

_MOST_NOTES = 64
_EXITS = ("sys.exit", "os._exit", "exit")


def noting(recorder: Recorder, exceptions: Exceptions) -> Callable[[int, bool], None]:
    """Returns what a group calls with a call's number (or, with True, when it is destroyed) while
    an exception is handled: noted once for each exception."""
    noted: set[tuple[int, int]] = set()

    def look(number: int, destroys: bool) -> None:
        with contextlib.suppress(Exception):
            error = sys.exc_info()[1]
            if not isinstance(error, Exception) or isinstance(error, ORDINARY):
                return
            key = (id(error), id(error.__traceback__))
            cleanup = _in_cleanup(sys._getframe(2), error)
            if key in noted or len(noted) >= _MOST_NOTES or not (cleanup or destroys):
                return
            noted.add(key)
            note = UnwindingNote(
                type=name_of(error),
                stack=stack_of(error),
                call=number,
                destroys=destroys,
                **exceptions.nature(error),
            )
            recorder.note(note, titled(error), users_site(recorder, error))

    return look


def _in_cleanup(frame: FrameType | None, error: BaseException) -> bool:
    """Whether the exception goes on after what runs now: a `finally`, the end of a `with`, or an
    `except` that raises or exits at its end."""
    passed = {id(frame) for frame, _ in walk_tb(error.__traceback__)}
    while frame is not None:
        name = frame.f_code.co_filename
        if id(frame) in passed and call_site.frame_kind(name) != call_site.OWN:
            return any(frame.f_lineno in span for span in _cleanups(name))
        frame = frame.f_back
    return False


@functools.cache
def _cleanups(filename: str) -> list[range]:
    """The lines of a file's `finally` blocks, `with` statements' heads and handlers that fail."""
    found = []
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse("".join(linecache.getlines(filename)))):
            body = getattr(node, "finalbody", None)
            if body:
                found.append(range(body[0].lineno, (body[-1].end_lineno or 0) + 1))
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                found.append(range(node.lineno, node.body[0].lineno))
            elif isinstance(node, ast.ExceptHandler) and _fails(node):
                found.append(range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1))
    return found


def _fails(handler: ast.ExceptHandler) -> bool:
    """Whether there is no way out of it but to raise, or to end with a status that is not 0."""
    if any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for node in ast.walk(handler)):
        return False
    last = handler.body[-1]
    if isinstance(last, ast.Raise):
        return True
    if not (isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)):
        return False
    if ast.unparse(last.value.func) not in _EXITS or not last.value.args:
        return False
    status = last.value.args[0]
    return not (isinstance(status, ast.Constant) and status.value in (0, None))
