"""A docstring names its subject: it does not begin with "Who", "What", "Of", "It" or the like."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("distcore", "debugger", "tui")

# A sentence that begins so leaves the reader to find out what it is about.
VAGUE = re.compile(
    r"(Who|Whoever|What|Whom|Whose|Of|Where|It|They|Those|So|Else|One|As|Nobody|Somebody|That|Which"
    r"|How)\b"
)


def vague(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and first words of each docstring without a subject."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and VAGUE.match(text):
                yield node.body[0].lineno, text[:60]


def test_docstrings_begin_with_their_subject() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {words!r}"
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        for line, words in vague(file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""What it is."""', 1),
        ('class A:\n    """Of one group."""', 2),
        ('def f():\n    """Who waits for whom."""', 2),
        ('class A:\n    async def f(self):\n        """As torch does."""', 3),
        ('def f():\n    """Returns the ranks that wait."""', None),
        ('def f():\n    """Offers are kept."""', None),
        ("def f():\n    return 1", None),
    ],
)
def test_a_docstring_without_a_subject_is_found(source: str, expected: int | None) -> None:
    assert [line for line, _words in vague(source)] == ([] if expected is None else [expected])
