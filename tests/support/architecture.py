"""Reads every import of the packages and judges it by the design's rules, each with its reason."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = {"distcore": "distcore", "debugger": "distdebug", "tui": "distdebug.tui"}
"""Each package's folder, and the name that it is imported by."""
APP = "distdebug.tui"
LONGEST_FILE_LINES = 800

# A room may use rooms on lower floors only. Modules directly in debugger/ are floor 0.
FLOORS = {
    "errors": 0,
    "system": 0,
    "record": 1,
    "diagnosis": 2,
    "faults": 2,
    "hook": 2,
    "foreign": 3,
    "launch": 3,
    "nodes": 3,
    "reports": 3,
    "rank": 3,
    "plan": 4,
    "supervisor": 4,
    "benchmarks": 5,
    "inspection": 5,
    "commands": 6,
    "testing": 6,
    "cli": 7,
    "__main__": 8,
}

# Narrower than the floors: the only rooms that these may use.
ONLY_ROOMS = {
    "rank": (
        {"record", "faults", "errors", "hook"},
        "what runs in a rank and what runs outside share only record/",
    ),
    "supervisor": (
        {"record", "diagnosis", "faults", "hook", "nodes", "reports"},
        "what watches ranks from outside never loads what runs in them: downward only",
    ),
    "nodes": (
        {"record", "diagnosis", "faults", "system", "hook"},
        "what nodes say to each other knows of no supervisor: it hands in what it has",
    ),
    "launch": ({"record", "hook"}, "launch/ only reads a command line; it shares only record/"),
}

STANDARD_LIBRARY_ONLY = {
    "distdebug.system": "ranks read it, and the small processes that every run starts",
    "distdebug.record": "the rank, the TUI and the reports all start with it, without torch",
    "distdebug.foreign": "a folder of dumps is judged where there is no torch",
    "distdebug.diagnosis": "a pure function over snapshots needs nothing, and starts anywhere",
    "distdebug.plan": "programs are executed and judged where there is no torch",
    "distdebug.errors": "record/ and diagnosis/ use it, and they are standard library only",
}

RAISED_IN_RANKS = "distdebug.errors.in_ranks"
"""The one module of errors that imports torch, for ranks and for who asks for what is in it."""

PROGRAMS = {"distdebug.commands.programs.demo"}
"""Programs as users write them, which run in ranks. They are copied, never imported."""

# (importer, target): allowed inside a function only, never when the module is imported.
ONLY_LAZILY = {
    ("distdebug", "distdebug"): "`distdebug.install()` opens its room when it is called",
    ("distdebug.errors", RAISED_IN_RANKS): "it derives from torch's: only when it is asked for",
    ("distdebug.hook", "distdebug.rank"): "the hook calls the rank's code once torch is imported",
    (
        "distdebug.testing.rank_session",
        "torch",
    ): "in a rank, which has it; pytest itself must not load it",
    ("distdebug.testing.rank_session", "distcore"): "the same: only where a rank makes its group",
    ("distdebug.launch.torchrun_flags", "torch"): "where another torch's parser cannot be taken",
}


@dataclass(frozen=True)
class Import:
    """One import statement: who imports what; `target` is absolute, a module where it is one."""

    file: Path
    line: int
    importer: str
    target: str
    relative: bool
    lazy: bool

    @property
    def room(self) -> str:
        """The room of debugger that imports, "" outside the rooms."""
        return _room(self.importer)


@dataclass(frozen=True)
class Violation:
    """One broken rule; its text is what the failing test prints."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def violations(root: Path) -> list[Violation]:
    """Return every broken rule in the packages under `root`."""
    files = {file: module_name(root, file) for file in _sources(root)}
    modules = set(files.values())
    found = []
    for file, module in files.items():
        place = str(file.relative_to(root))
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text, str(file))
        found += [Violation(place, reason) for reason in _about_the_file(text, tree)]
        found += [Violation(f"{place}:{line}", r) for line, r in _private_torch(file, tree)]
        for item in imports(file, module, tree, modules):
            reasons = [f"imports {item.target}: {why}" for why in _about_an_import(item, root)]
            found += [Violation(f"{place}:{item.line}", reason) for reason in reasons]
    return found


def _about_the_file(text: str, tree: ast.Module) -> Iterator[str]:
    lines = text.count("\n")
    if lines > LONGEST_FILE_LINES:
        yield f"{lines} lines; nothing over {LONGEST_FILE_LINES}, find the seam"
    if not ast.get_docstring(tree):
        yield "no docstring; its first line says why the file exists"


def _about_an_import(item: Import, root: Path) -> Iterator[str]:
    package, target = _package(item.importer), _package(item.target)
    for (importer, allowed), why in ONLY_LAZILY.items():
        exact = importer == "distdebug"  # the package itself, not all that is in it
        from_here = item.importer == importer if exact else _inside(item.importer, importer)
        if from_here and _inside(item.target, allowed):
            ground_floor = target == "distdebug" and _floor(item.target, root) == 0
            ground_floor = ground_floor and item.target != allowed
            if not (item.lazy or ground_floor):
                yield f"only inside a function ({why})"
            return
    if item.target == _OUTSIDE:
        yield "too many dots"
    in_ranks = item.room == "rank" or item.importer == RAISED_IN_RANKS
    loads_torch = in_ranks or item.room == "benchmarks" or item.importer in PROGRAMS
    if target == "torch" and package != "distcore" and not loads_torch:
        yield "importing torch costs 2 s and 225 MB; only distcore, rank/ and benchmarks/ do"
    if target == "distcore" and package != "distcore" and not in_ranks:
        if item.room != "benchmarks":
            yield "distcore imports torch; only debugger/rank and debugger/benchmarks use it"
        elif item.target != "distcore":
            yield "a benchmark measures what users have: distcore's public names"
    if package == "distcore" and target in {"distdebug", APP}:
        yield "the communication stack knows nothing of its observers"
    if package == "distdebug" and target in {APP, "textual"}:
        yield "the debugger works without a terminal app; the app reads what it writes"
    if package == APP and target == "distdebug" and _room(item.target) not in _TUI_READS:
        yield "the app reads run directories through record, diagnosis and reports only"
    if package == target == "distdebug":
        yield from _inside_the_house(item, root)
    for pure, why in STANDARD_LIBRARY_ONLY.items():
        ours = target in FOLDERS.values()
        if item.importer == RAISED_IN_RANKS:
            continue
        known = ours or target in sys.stdlib_module_names or target == "typing_extensions"  # mypy's
        if _inside(item.importer, pure) and not known:
            yield f"{pure} is standard library only: {why}"


_TUI_READS = {"record", "diagnosis", "hook", "system", "reports"}
_OUTSIDE = "what lies above its package"


def _inside_the_house(item: Import, root: Path) -> Iterator[str]:
    if not item.relative and "/site/" not in item.file.as_posix():
        yield "relative imports only: a rank loads the package under another name"
    here, there = item.room, _room(item.target)
    if here == there:
        return
    below = _floor(item.target, root)
    if below is None or (floor := _floor(item.importer, root)) is None:
        yield f"{there or here}/ has no floor: give it one in {Path(__file__).name}"
        return
    if below >= max(floor, 1):
        yield f"{here or 'debugger'} is on floor {floor}, {there} on floor {below}: downward only"
    elif below and here in ONLY_ROOMS and there not in ONLY_ROOMS[here][0]:
        yield ONLY_ROOMS[here][1]


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "distdebug" and len(parts) > 1 else ""


def _floor(module: str, root: Path) -> int | None:
    if module == RAISED_IN_RANKS:
        return FLOORS["record"] + 1  # the kinds are there
    room = _room(module)
    if room in FLOORS:
        return FLOORS[room]
    return None if room and (root / "debugger" / room).is_dir() else 0


def _package(module: str) -> str:
    return APP if _inside(module, APP) else module.partition(".")[0]


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _sources(root: Path) -> Iterator[Path]:
    for package in FOLDERS:
        yield from sorted((root / package).rglob("*.py"))


def module_name(root: Path, file: Path) -> str:
    """`distdebug.rank.log`, for its file or its folder's `__init__.py`."""
    folder, *parts = file.relative_to(root).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(parts[:-1] if parts[-1] == "__init__" else parts)])


def imports(file: Path, module: str, tree: ast.Module, modules: set[str]) -> Iterator[Import]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node, lazy in _walk(tree, lazy=False):
        for target, relative in _targets(node, package, modules):
            line = getattr(node, "lineno", 0)
            yield Import(file, line, module, target, relative, lazy)


def _walk(node: ast.AST, *, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it runs only when a function is called."""
    waiting = [(node, lazy)]
    while waiting:
        node, lazy = waiting.pop()
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        later = lazy or function or _is_for_types(node)
        children = [(child, later) for child in ast.iter_child_nodes(node)]
        yield from children
        waiting += children


def _is_for_types(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:`, which never runs."""
    test = node.test if isinstance(node, ast.If) and not node.orelse else None
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _targets(node: ast.AST, package: str, modules: set[str]) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, False) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute("." * node.level + (node.module or ""), package)
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            yield (submodule if submodule in modules else base), bool(node.level)
    elif isinstance(node, ast.Call) and node.args:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        name = node.func.id if isinstance(node.func, ast.Name) else name
        first = node.args[0]
        if name in {"import_module", "__import__"} and isinstance(first, ast.Constant):
            yield _absolute(str(first.value), package), str(first.value).startswith(".")


def _absolute(name: str, package: str) -> str:
    """The module that `name`, dots in front included, means inside `package`."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    parts = package.split(".")
    if level > len(parts):
        return _OUTSIDE
    return ".".join([*parts[: len(parts) - level + 1], *filter(None, [name[level:]])])


def _private_torch(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Uses of torch's private names outside the one file for them."""
    if file.name == "torch_private.py" or file.parent.name == "torch_private":
        return
    reason = "touches torch's private {}: releases differ there, keep it in torch_private"
    aliases = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and _inside(node.module or "", "torch")
        ):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            aliases |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if _inside(alias.name, "torch")]
            names = [part for alias in ours for part in alias.name.split(".")]
            aliases |= {alias.asname or "torch" for alias in ours}
        else:
            continue
        yield from ((node.lineno, reason.format(name)) for name in names if _is_private(name))
    for node in ast.walk(tree) if aliases else ():
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            start: ast.expr = node
            while isinstance(start, ast.Attribute):
                start = start.value
            if isinstance(start, ast.Name) and start.id in aliases:
                yield node.lineno, reason.format(node.attr)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
