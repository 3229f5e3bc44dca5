"""What is missing where a kind of finding, a collective, a fault, a backend or a screen was begun.

Each function reads the files below `root`, a checkout or a copy of one, and yields sentences that
name the file which lacks something: the recipes of CONTRIBUTING.md as a checker.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

KINDS = "debugger/record/kinds.py"
RULES = "debugger/diagnosis/rules"
DIAGNOSE = "debugger/diagnosis/diagnose.py"
_BY_RANKS = ("debugger/rank", "debugger/record", "debugger/supervisor/command/reach.py")
_MAY_LIST_KINDS = {KINDS, "debugger/faults/actions.py"}
MOST_NAMED = 2
"""More kinds than so many in one literal are a table of kinds."""


def of_kinds(root: Path) -> Iterator[str]:
    """A kind stands in its record, in README, and in a rule that is run."""
    kinds = kinds_in(root / KINDS)
    readme = _readme_codes(root / "README.md")
    made = [path for path in _who_finds(root) if _quoted(path.read_text(), kinds)]
    said = {word for path in made for word in _words(path)}
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
    for place in (
        RULES,
        "debugger/diagnosis/notices.py",
        "debugger/diagnosis/folding.py",
        *_BY_RANKS,
    ):
        path = root / place
        if path.is_file():
            yield path
        yield from (one for one in sorted(path.rglob("*.py")) if one != root / KINDS)


def _quoted(text: str, names: Iterable[str]) -> list[str]:
    """Which of the names that source may have as texts: most files have none, and to parse all of
    them takes seconds."""
    return [name for name in names if f'"{name}"' in text]


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
            text = path.read_text()
            if len(_quoted(text, kinds)) <= MOST_NAMED:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Set | ast.Tuple | ast.List | ast.Dict):
                    parts = node.keys if isinstance(node, ast.Dict) else node.elts
                    named = {one.value for one in parts if isinstance(one, ast.Constant)} & kinds
                    if len(named) > MOST_NAMED:
                        names = ", ".join(sorted(named))
                        where = f"{place}:{node.lineno}"
                        yield f"{where}: a table of kinds ({names}), which belongs in {KINDS}"


# -- a collective ----------------------------------------------------------------------------------

OPS = "debugger/record/ops.py"
GROUPS = "distcore/groups/collectives.py"
ENGINE = "distcore/engine/base.py"
QUEUED = "distcore/engine/session.py"
KNOWN_CALLS = "tests/support/known_calls.py"
_WITHOUT_A_RESULT = {"send", "recv", "monitored_barrier"}
"""Messages are known in patterns of them (a ring, a batch)."""


def of_collectives(root: Path) -> Iterator[str]:
    """A collective has a row, in distcore a checked call for each of its methods, and a call whose
    result is known; what its groups ask of an engine is planned by every one."""
    methods = _methods_by_op(root / OPS)
    groups = sorted((root / "distcore/groups").glob("*.py"))
    defined = {name for path in groups for name in _defined(path)}
    known = _names(root / KNOWN_CALLS)
    for op, names in methods.items():
        for name in sorted(names - defined):
            yield f"{GROUPS}: has no method {name!r}, which makes {op!r} of {OPS}"
        # Each of torch's functions for several tensors at once is known by the one for one tensor.
        if op not in _WITHOUT_A_RESULT and not {op, op.removesuffix("_coalesced"), *names} & known:
            yield f"{KNOWN_CALLS}: has no call of {op!r} whose result is known"
    for name in sorted(_callers(root / GROUPS) - {*methods, *set().union(*methods.values())}):
        yield f"{OPS}: has no row for {name!r}, which {GROUPS} calls"
    yield from _planners(root, groups)


def _planners(root: Path, groups: list[Path]) -> Iterator[str]:
    """What the groups ask of their engine, and what each engine plans."""
    asked = {name for path in groups for name in _asked_of_engine(path)}
    offered = _planned(root / ENGINE)
    for name in sorted(asked - _defined(root / ENGINE)):
        yield f"{ENGINE}: Engine has no {name!r}, which the groups ask for"
    for name in sorted(offered - asked):
        yield f"{GROUPS}: no group asks for {name!r}, which {ENGINE} has"
    shared = _defined(root / QUEUED)
    for engine in ("tcp", "mpi", "nccl"):
        place = f"distcore/{engine}/engine.py"
        text = (root / place).read_text()
        own = _defined(root / place) | (shared if "(QueuedEngine)" in text else set())
        for name in sorted(offered - own):
            yield f"{place}: does not plan {name!r}"


def _asked_of_engine(path: Path) -> set[str]:
    """Names N of `self._engine.N`."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "_engine"
    }


def _planned(path: Path) -> set[str]:
    """Functions of that file whose answer is a call's body."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "Body"
    }


def _methods_by_op(path: Path) -> dict[str, set[str]]:
    """Returns the methods of each op's row."""
    table = _value(path, "OPS")
    assert isinstance(table, ast.Dict)
    found = {}
    for key, row in zip(table.keys, table.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(row, ast.Call)
        (given,) = (one.value for one in row.keywords if one.arg == "methods")
        found[str(key.value)] = {one.value for one in ast.walk(given) if _is_text(one)}  # type: ignore[attr-defined]
    return found


def _callers(path: Path) -> set[str]:
    """Returns the calls N of `self._caller("N")`: what a checked call is named in its messages."""
    return {
        str(node.args[0].value)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "_caller"
        and isinstance(node.args[0], ast.Constant)
    }


def _value(path: Path, name: str) -> ast.expr:
    """What is assigned to that name at the top of the file."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            value = getattr(node, "value", None)
            assert value is not None
            return value  # type: ignore[no-any-return]
    raise LookupError(f"{path}: has no {name}")


def _keys(path: Path, name: str) -> list[str]:
    table = _value(path, name)
    assert isinstance(table, ast.Dict)
    return [str(one.value) for one in table.keys if isinstance(one, ast.Constant)]


def _defined(path: Path) -> set[str]:
    """Functions, and names that something is assigned to, also within classes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found


def _names(path: Path) -> set[str]:
    """All texts and attributes of that file."""
    tree = ast.parse(path.read_text())
    return _words(path) | {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute)}


# -- a fault ---------------------------------------------------------------------------------------

ACTIONS = "debugger/faults/actions.py"
INJECT = "debugger/rank/inject"
FAULTS_PAGE = "debugger/docs/reference/faults.md"
CASES = "tests/faults/cases.py"
SPECS = "tests/unit/faults/test_spec.py"


def of_faults(root: Path) -> Iterator[str]:
    """A fault is described, performed in ranks, on its page, parsed by a test, in the matrix."""
    actions = _actions(root / ACTIONS)
    performed = {word for path in sorted((root / INJECT).glob("*.py")) for word in _words(path)}
    page = set(re.findall(r"^\| `([\w-]+)", (root / FAULTS_PAGE).read_text(), re.MULTILINE))
    tried = " ".join(_words(root / CASES))
    parsed = " ".join(_words(root / SPECS))
    for path in sorted((root / INJECT).glob("*.py")):
        for table in ("ACTS", "WAYS"):
            with contextlib.suppress(LookupError, AssertionError):
                for name in sorted(set(_keys(path, table)) - actions.keys()):
                    yield f"{ACTIONS}: has no {name!r}, which {path.relative_to(root)} performs"
    for name, family in actions.items():
        if name not in performed and family != "LINK":
            yield f"{INJECT}/: nothing performs {name!r}"
        if name not in page:
            yield f"{FAULTS_PAGE}: the table has no row of `{name}`"
        for place, words in ((CASES, tried), (SPECS, parsed)):
            if not re.search(rf"\b{re.escape(name)}\(", words):
                yield f"{place}: has no case of {name!r}"


def _actions(path: Path) -> dict[str, str]:
    """The actions of that file with their families."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Action":
            name, family = node.args[:2]
            assert isinstance(name, ast.Constant)
            assert isinstance(family, ast.Attribute)
            found[str(name.value)] = family.attr
    return found


# -- a backend -------------------------------------------------------------------------------------

REGISTRATION = "distcore/backend.py"
BACKEND_PARTS = ("unavailable", "create")
_NOT_FOR_PROGRAMS = {"plan"}
"""It moves nothing: `distdebug plan` puts it in the place of the backend that a program names."""
CORE_PAGE = "distcore/README.md"


def of_backends(root: Path) -> Iterator[str]:
    """A backend has what torch asks for, is registered, on the page, and in its conformance suite:
    some test runs that."""
    registered = _names_in(_value(root / REGISTRATION, "_BACKENDS"))
    tested = {
        str(node.args[0].value)
        for path in sorted((root / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "check_backend"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    paths = sorted((root / "distcore").glob("*/backend.py"))
    paths = [path for path in paths if path.parent.name not in _NOT_FOR_PROGRAMS]
    for name in sorted(registered - {one for path in paths for one in _classes(path)}):
        yield f"distcore/*/backend.py: none has {name}, which {REGISTRATION} registers"
    for path in paths:
        place = path.relative_to(root).as_posix()
        for node in ast.parse(path.read_text()).body:
            if not (isinstance(node, ast.ClassDef) and node.name.endswith("Backend")):
                continue
            if node.name not in registered:
                yield f"{REGISTRATION}: does not register {node.name} of {place}"
            lacking = set(BACKEND_PARTS) - _defined(path)
            if lacking:
                yield f"{place}: {node.name} has no {' and no '.join(sorted(lacking))}"
            name = _default(node, "name", path.parent)
            own_page = path.with_name("README.md")
            page = (root / CORE_PAGE).read_text()
            page += own_page.read_text() if own_page.exists() else ""
            names = {name, name.removeprefix("distcore_")}
            if not any(f'"{one}"' in page or f"`{one}`" in page for one in names):
                yield f"{CORE_PAGE}: does not name the backend `{name}`"
            if not names & tested:
                yield f'tests/: nothing runs check_backend("{name}"), its conformance suite'


def _classes(path: Path) -> set[str]:
    """The classes at the top of that file."""
    return {one.name for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)}


def _names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _default(node: ast.ClassDef, name: str, package: Path) -> str:
    """The text of that field, or of the constant of the package that it is."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and getattr(one.target, "id", "") == name:
            if isinstance(one.value, ast.Constant):
                return str(one.value.value)
            assert isinstance(one.value, ast.Name)
            for path in sorted(package.glob("*.py")):
                with contextlib.suppress(LookupError):
                    return _text(_value(path, one.value.id))
    return ""


# -- a screen of the app ---------------------------------------------------------------------------

KEYS = "tui/keys.py"
SCREENS = "tui/screens"
SNAPSHOTS = "tests/unit/tui/snapshots.py"
SCREEN_PARTS = ("name", "key", "title", "explained")


def of_screens(root: Path) -> Iterator[str]:
    """A screen says what it is, is listed, has a key of its own, and what it shows is kept."""
    listed = _names_in(_value(root / KEYS, "VIEWS"))
    shown = _words(root / SNAPSHOTS)
    taken: dict[str, str] = {}
    paths = sorted((root / SCREENS).glob("*.py"))
    for name in sorted(listed - {one for path in paths for one in _classes(path)}):
        yield f"{SCREENS}/: no file has {name}, which {KEYS} lists"
    for path in paths:
        place = path.relative_to(root).as_posix()
        for node in ast.parse(path.read_text()).body:
            bases = getattr(node, "bases", ())
            if not (isinstance(node, ast.ClassDef) and "View" in map(_id, bases)):
                continue
            said = {
                one.targets[0].id: one.value
                for one in node.body
                if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
            }
            lacking = [part for part in SCREEN_PARTS if part not in said]
            if lacking:
                yield f"{place}: {node.name} has no {' and no '.join(lacking)}"
                continue
            name, key = (_text(said[part]) for part in ("name", "key"))
            if key in taken:
                yield f"{place}: the key {key!r} is that of {taken[key]}"
            taken[key] = node.name
            if node.name not in listed:
                yield f"{KEYS}: does not list {node.name} of {place}"
            if name not in shown and key not in shown:
                yield f"{SNAPSHOTS}: keeps nothing of the screen {name!r}"


def _id(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    assert isinstance(node, ast.Constant)
    return str(node.value)
