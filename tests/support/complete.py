"""What is missing where a kind of finding, a collective, a fault, a backend or a screen was begun.

Each function reads the files below `root`, a checkout or a copy of one, and yields sentences that
name the file which lacks something: the recipes of CONTRIBUTING.md as a checker.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

KINDS = "debugger/record/kinds.py"
RULES = "debugger/diagnosis/rules"
DIAGNOSE = "debugger/diagnosis/diagnose.py"
_BY_RANKS = ("debugger/rank", "debugger/record", "debugger/supervisor/unrecorded.py")
_MAY_LIST_KINDS = {KINDS, "debugger/faults/actions.py"}
MOST_NAMED = 2
"""More kinds than so many in one literal are a table of kinds."""


def of_kinds(root: Path) -> Iterator[str]:
    """A kind stands in its record, in README, and in a rule that is run."""
    kinds = kinds_in(root / KINDS)
    readme = _readme_codes(root / "README.md")
    said = {word for path in _who_finds(root) for word in _words(path)}
    for name, code in kinds.items():
        if readme.get(name) != code:
            yield f"README.md: the table has no row of `{name}` with the exit code {code}"
        if name not in said:
            yield f"{RULES}/: no rule yields a finding of the kind {name!r}"
    for name in readme.keys() - kinds.keys():
        yield f"{KINDS}: has no kind {name!r}, which README.md lists"
    run = (root / DIAGNOSE).read_text() + (root / "debugger/diagnosis/judging.py").read_text()
    for path in sorted((root / RULES).glob("*.py")):
        for name in _kinds_made(path) - kinds.keys():
            yield f"{KINDS}: has no kind {name!r}, which {path.relative_to(root)} yields"
        if path.stem != "__init__" and f"rules.{path.stem} import" not in run:
            yield f"{DIAGNOSE}: does not run {path.relative_to(root)}"


def kinds_in(path: Path) -> dict[str, int]:
    """The kinds of that file with their exit codes."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 2:
            name, code = node.args[:2]
            if node.func.id == "Kind" and isinstance(name, ast.Constant):
                assert isinstance(code, ast.Constant)
                found[str(name.value)] = int(str(code.value))
    return found


def _readme_codes(path: Path) -> dict[str, int]:
    """The table of kinds, of which a row has several, and their exit code."""
    found: dict[str, int] = {}
    table = path.read_text().partition("| kind |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        names, *_, code = (cell.strip() for cell in row.strip("|").split("|"))
        found |= dict.fromkeys(re.findall(r"`(\w+)`", names), int(code))
    return found


def _who_finds(root: Path) -> Iterator[Path]:
    for place in (RULES, "debugger/diagnosis/notices.py", "debugger/diagnosis/folding", *_BY_RANKS):
        path = root / place
        if path.is_file():
            yield path
        yield from (one for one in sorted(path.rglob("*.py")) if one != root / KINDS)


def _words(path: Path) -> set[str]:
    """All texts of that file."""
    tree = ast.parse(path.read_text())
    return {one.value for one in ast.walk(tree) if _is_text(one)}  # type: ignore[attr-defined]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _kinds_made(path: Path) -> set[str]:
    """The kinds of the findings that the file makes, where it names them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            named = [one.value for one in node.keywords if one.arg == "kind"]
            for value in [*node.args[:1], *named]:
                if isinstance(value, ast.Constant):
                    found.add(str(value.value))
    return found


def tables_of_kinds(root: Path) -> Iterator[str]:
    """A literal that lists kinds is one more place for who adds one."""
    kinds = set(kinds_in(root / KINDS))
    for package in ("debugger", "tui"):
        for path in sorted((root / package).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            if place in _MAY_LIST_KINDS:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Set | ast.Tuple | ast.List | ast.Dict):
                    parts = node.keys if isinstance(node, ast.Dict) else node.elts
                    named = {one.value for one in parts if isinstance(one, ast.Constant)} & kinds
                    if len(named) > MOST_NAMED:
                        names = ", ".join(sorted(named))
                        where = f"{place}:{node.lineno}"
                        yield f"{where}: a table of kinds ({names}), which belongs in {KINDS}"
