"""Decisions that a program takes on values which a plan does not have: put on record, and taken.

Nothing is guessed silently: each is reported once, with the line of the program. The way that is
followed is what the values that stand in would say, or what was asked for. Where that way leads
into an `assert` that fails or an `if` that raises, the likely way is the other one.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Iterator
from types import FrameType

from ...record.writing.program_writer import ProgramWriter
from ..record import call_site
from ..record.recorder import Recorder

LIKELY, TRUE, FALSE = "likely", "true", "false"
_COMPARISONS_OF_TESTS = "/torch/testing/"


class Decisions:
    """The decisions of this process. `way` is one of `LIKELY`, `TRUE` and `FALSE`."""

    def __init__(self, way: str) -> None:
        self._way = way
        self._recorder: Recorder | None = None
        self._writer: ProgramWriter | None = None
        self._told: set[tuple[int, str]] = set()
        self._silent = 0

    def tell(self, recorder: Recorder, writer: ProgramWriter) -> None:
        """Puts decisions on record there."""
        self._recorder, self._writer = recorder, writer

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """Leaves out decisions made within, which are of no consequence: how a tensor is
        printed."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def depends(self, what: str, frame: FrameType | None = None) -> None:
        """The program goes on by a value that is not known."""
        recorder, writer = self._recorder, self._writer
        if self._silent or recorder is None or writer is None:
            return
        site = recorder.safe_site(frame or sys._getframe(1))
        if (site, what) not in self._told:
            self._told.add((site, what))
            writer.undecided(site, what)

    def condition(self, stand_in: bool, what: str) -> bool:
        """Decides which way to go. `stand_in`: the way of the values that stand in."""
        if self._silent:
            return stand_in
        frame = sys._getframe(1)
        self.depends(what, frame)
        if self._way != LIKELY:
            return self._way == TRUE
        return _without_failing(frame, stand_in)


def _without_failing(frame: FrameType | None, stand_in: bool) -> bool:
    """The way on which the user's line does not fail; `stand_in` where both go on."""
    found = frame
    while found is not None and found.f_code.co_filename.startswith(call_site.DIRECTORIES[0]):
        found = found.f_back
    if found is not None and _COMPARISONS_OF_TESTS in found.f_code.co_filename:
        return True
    user = call_site.find(found)
    if user is None:
        return stand_in
    wanted = _wanted(user.f_code.co_filename, user.f_lineno)
    return stand_in if wanted is None else wanted


@functools.lru_cache(maxsize=1024)
def _wanted(file: str, line: int) -> bool | None:
    """Returns what a condition at this line must be for the program to go on; None where it may be
    both."""
    for node in _statements(file):
        last = getattr(node, "end_lineno", None) or node.lineno
        if isinstance(node, ast.Assert) and node.lineno <= line <= last:
            return _passes(node.test)
        raises = isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)
        if raises and node.lineno <= line <= (node.test.end_lineno or 0):
            return not _passes(node.test)
    return None


@functools.lru_cache(maxsize=64)
def _statements(file: str) -> tuple[ast.Assert | ast.If, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Assert | ast.If))


def _passes(test: ast.expr) -> bool:
    """Returns what the condition within a test must be for the test to hold: `not found` and `found
    is False` want it to be false."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            return not _passes(operand)
        case ast.Compare(left, [ast.Is() | ast.Eq()], [ast.Constant(bool() as wanted)]):
            return _passes(left) == wanted
        case ast.Compare(left, [ast.IsNot() | ast.NotEq()], [ast.Constant(bool() as wanted)]):
            return _passes(left) != wanted
    return True
