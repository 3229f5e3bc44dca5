"""The branches of a code object: where each stands in the source, and what its condition reads."""

from __future__ import annotations

import ast
import dis
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import Any

from ...record.secret_words import REDACTED, is_secret
from ...record.snapshot import ITEM, NO_MORE
from .variables import Reader, reader_of

MOST_NAMES = 6
_MOST_SOURCE = 160
_PASSED_OVER = frozenset({"TO_BOOL", "COPY", "EXTENDED_ARG", "NOP", "CACHE", "UNARY_NOT"})
"""Instructions between what computes a condition and the jump, which have positions of their own,
or none."""
_WHOLE = re.compile(
    r"(?:if|elif|while|assert|except)\s+(.*?)(?:\s+as \w+)?\s*(?:,.*|:.*)?", re.DOTALL
)
_NEGATED = re.compile(r"\bnot\s*$")


@dataclass(slots=True, eq=False)
class Condition:
    """A condition: `source` is the line that it stands on, `part` the part of it that decides ("":
    all of it). `outcomes`: of going on with the next instruction, and of the jump. `names` as
    `readers` read them; `shown`: the texts between them, of a comparison. `branch`: its number on
    record."""

    line: int
    source: str = ""
    part: str = ""
    outcomes: tuple[str, str] = ("", "")
    next_at: int = 0
    names: tuple[str, ...] = ()
    readers: tuple[Reader, ...] = ()
    shown: tuple[str, ...] = ()
    branch: int = 0


def conditions(code: CodeType) -> dict[int, Condition]:
    """All of a code, by the offset of the jump."""
    found = {}
    before: dis.Instruction | None = None
    rows = list(dis.get_instructions(code))
    for one, after in pairwise(rows):
        if one.opname == "FOR_ITER":
            found[one.offset] = _loop(code, one, after.offset)
        elif "JUMP" in one.opname and "IF_" in one.opname:
            found[one.offset] = _jump(code, one, before or one, after.offset)
        if one.opname not in _PASSED_OVER:
            before = one
    return found


def source_line(code: CodeType, line: int) -> str:
    """The line as it stands in the file; "" where that cannot be read."""
    return linecache.getline(code.co_filename, line).strip()[:_MOST_SOURCE]


def _loop(code: CodeType, one: dis.Instruction, next_at: int) -> Condition:
    line = _line(code, one)
    source = source_line(code, line)
    names, readers, _ = _read(code, _parsed(source + "\n pass", lambda made: made.iter))
    return Condition(line, source, "", (ITEM, NO_MORE), next_at, names, readers)


def _line(code: CodeType, one: dis.Instruction) -> int:
    at = getattr(one, "positions", None)
    if at is not None and at.lineno:
        return int(at.lineno)
    starts = (line for offset, line in dis.findlinestarts(code) if offset <= one.offset and line)
    return max(starts, default=code.co_firstlineno)


def _jump(code: CodeType, one: dis.Instruction, made: dis.Instruction, next_at: int) -> Condition:
    # Of `x is None` the jump itself compares.
    made = one if "NONE" in one.opname else made
    at = getattr(made, "positions", None)  # from Python 3.11 on
    line = _line(code, made)
    source = source_line(code, line)
    if at is None or None in at or at.lineno != at.end_lineno:
        part, before = "", ""
    else:
        text = linecache.getline(code.co_filename, line).encode()
        part = text[at.col_offset : at.end_col_offset].decode("utf-8", "replace")
        before = text[: at.col_offset].decode("utf-8", "replace")
    jumps_if = not ("FALSE" in one.opname or "NOT_NONE" in one.opname)
    if "NONE" in one.opname and re.search(r"\bis\s+not\s+None$", part):
        jumps_if = not jumps_if
    expression = _parsed(part, lambda made: made.value)
    names, readers, shown = _read(code, expression, part)
    if _NEGATED.search(before):
        jumps_if, part = not jumps_if, f"not {part}"
        shown = ()
    if source.startswith("case "):
        subject = _subject(code, line)
        names, readers, shown = _read(code, _parsed(subject, lambda made: made.value))
    if any(map(is_secret, names)) and expression is not None:
        for constant in ast.walk(expression):
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                source, part = (text.replace(constant.value, REDACTED) for text in (source, part))
                shown = ()
    whole = _WHOLE.fullmatch(source)
    if source.startswith("case ") or (whole is not None and whole[1].strip() == part):
        part = ""
    outcomes = (str(not jumps_if), str(jumps_if))
    return Condition(line, source, part, outcomes, next_at, names, readers, shown)


def _parsed(text: str, of: Callable[[Any], ast.expr]) -> ast.expr | None:
    try:
        return of(ast.parse(text.strip()).body[0])
    except (SyntaxError, ValueError, AttributeError, IndexError):
        return None


def _subject(code: CodeType, line: int) -> str:
    """Returns what the `match` above this line compares."""
    for above in range(line - 1, max(0, line - 200), -1):
        match = re.fullmatch(r"match\s+(.+?):\s*(?:#.*)?", source_line(code, above))
        if match:
            return match[1]
    return ""


def _read(
    code: CodeType, expression: ast.expr | None, text: str = ""
) -> tuple[tuple[str, ...], tuple[Reader, ...], tuple[str, ...]]:
    if expression is None:
        return (), (), ()
    leaves = list(_leaves(expression, code))[:MOST_NAMES]
    leaves.sort(key=lambda one: one[0].col_offset)
    shown = []
    if isinstance(expression, ast.Compare) and text.isascii() and "\n" not in text:
        at = 0
        for leaf, _ in leaves:
            shown.append(text[at : leaf.col_offset])
            at = leaf.end_col_offset or at
        shown.append(text[at:])
    names = tuple(ast.unparse(one) for one, _ in leaves)
    return names, tuple(reader for _, reader in leaves), tuple(shown)


def _leaves(node: ast.AST, code: CodeType) -> Iterator[tuple[ast.expr, Reader]]:
    """Yields the largest parts that can be read."""
    if isinstance(node, ast.expr) and (reader := reader_of(node, code)) is not None:
        yield node, reader
        return
    if isinstance(node, ast.Call):
        children: list[ast.AST] = [*node.args, *node.keywords]
    elif isinstance(node, ast.Lambda):
        children = []
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        children = [node.generators[0].iter]  # the rest of it has names of its own
    else:
        children = [*ast.iter_child_nodes(node)]
    for child in children:
        yield from _leaves(child, code)
