"""Which way a function of the user's has gone: the calls that it has made in this round of its
loops, by its source and the values of its variables.

A handle does not show on a stack whose call it is of. Where ranks wait for handles at one line, and
the branches that they have taken make other calls, or the same in another order, that is why.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ..supervisor.stacks.stacks import Frame
from .source import body_of, called, whole_number

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_TRUTHS = {"True": True, "False": False, "None": False}


class MadeCall(NamedTuple):
    """A call that a function has made, by its name, and at which line."""

    op: str
    line: int


class _Unknown(Exception):
    """A branch in which a call is made, and of which nobody knows whether it was taken."""


def calls_made(frame: Frame, names: Collection[str]) -> tuple[MadeCall, ...]:
    """Which of the calls named the function has made up to the frame's line, in their order; of a
    loop around it those of this round, of another loop those of one. () where that is not known."""
    body = body_of(frame)
    way = _Way(frame.line, names, dict(frame.values), _bound_at(body))
    try:
        return tuple(way.through(body))
    except _Unknown:
        return ()


def _bound_at(body: Collection[ast.stmt]) -> dict[str, list[int]]:
    """The lines at which names are given values."""
    lines: dict[str, list[int]] = {}
    for node in (one for statement in body for one in ast.walk(statement)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            lines.setdefault(node.id, []).append(node.lineno)
    return lines


class _Way:
    def __init__(
        self,
        line: int,
        names: Collection[str],
        known: Mapping[str, str],
        bound_at: Mapping[str, Collection[int]],
    ) -> None:
        self._line, self._names, self._known, self._bound_at = line, names, known, bound_at

    def through(self, body: Collection[ast.stmt]) -> Iterator[MadeCall]:
        for statement in body:
            if statement.lineno > self._line:
                return
            yield from self._of(statement)

    def _of(self, statement: ast.stmt) -> Iterator[MadeCall]:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                yield from self._in(test)
                taken = self._taken(statement)
                if taken is None and (self._makes_some(body) or self._makes_some(orelse)):
                    raise _Unknown
                yield from self.through([] if taken is None else body if taken else orelse)
            case ast.For(iter=head, body=body) | ast.While(test=head, body=body):
                yield from self._in(head)
                yield from self.through(body)
            case ast.With(body=body, items=items):
                for item in items:
                    yield from self._in(item.context_expr)
                yield from self.through(body)
            case ast.Try(body=body):
                yield from self.through(body)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case _:
                yield from self._in(statement)

    def _in(self, node: ast.AST) -> Iterator[MadeCall]:
        found = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
        for one in sorted(found, key=lambda one: (one.lineno, one.col_offset)):
            if (name := called(one)) in self._names:
                yield MadeCall(name, one.lineno)

    def _makes_some(self, body: Collection[ast.stmt]) -> bool:
        return any(True for statement in body for _ in self._in(statement))

    def _taken(self, statement: ast.If) -> bool | None:
        """Whether its first branch was: it is, where the function stands in it."""
        first, last = statement.body[0].lineno, statement.body[-1].end_lineno or 0
        if first <= self._line <= last:
            return True
        if statement.orelse and statement.orelse[0].lineno <= self._line <= (
            statement.orelse[-1].end_lineno or 0
        ):
            return False
        changed = (
            self._line >= line > statement.lineno
            for one in ast.walk(statement.test)
            if isinstance(one, ast.Name)
            for line in self._bound_at.get(one.id, ())
        )
        return None if any(changed) else self._truth(statement.test)

    def _truth(self, test: ast.expr) -> bool | None:
        match test:
            case ast.BoolOp(op=sign, values=values):
                truths = [self._truth(one) for one in values]
                decides = isinstance(sign, ast.Or)
                if decides in truths:
                    return decides
                return None if None in truths else not decides
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self._truth(operand)
                return None if truth is None else not truth
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if (
                type(sign) in _COMPARISONS
            ):
                one, other = self._number(left), self._number(right)
                if one is None or other is None:
                    return None
                return _COMPARISONS[type(sign)](one, other)
            case ast.Name(id=name) if self._known.get(name) in _TRUTHS:
                return _TRUTHS[self._known[name]]
        number = self._number(test)
        return None if number is None else bool(number)

    def _number(self, node: ast.expr) -> int | None:
        return whole_number(node, self._known)
