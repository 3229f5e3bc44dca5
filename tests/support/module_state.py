"""Finds what modules keep between calls: names of theirs that functions bind again, or change.

By a `global` statement; by a store into such a name, or a call that changes what it holds, in a
function of that module or of one that imports it; and because it is an object of a class of the
same package whose methods change it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.architecture import module_name

CHANGES = frozenset(
    (
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
        "update",
    )
)
"""Methods that change a container."""
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def kept(root: Path, package: Path) -> dict[str, list[str]]:
    """`log/steps.of_program`, and where it is changed, for all that modules below `package` keep;
    `root` is the folder of the outermost package."""
    files = {module_name(root, file): file for file in sorted(package.rglob("*.py"))}
    trees = {
        module: ast.parse(file.read_text("utf-8"), str(file)) for module, file in files.items()
    }
    changing = {name for tree in trees.values() for name in _changing_classes(tree)}
    found: dict[str, list[str]] = {}
    for module, file in files.items():
        tree = trees[module]
        names = {name: f"{module}.{name}" for name in _bound(tree)}
        names.update(_imported(tree, module, file, files))
        for name, line in [*_changed(tree, frozenset(names)), *_objects(tree, changing)]:
            head, _, rest = name.partition(".")
            if names[head] in files and not rest:
                continue  # a function of that module
            dotted = f"{names[head]}.{rest}" if names[head] in files else names[head]
            owner, _, last = dotted.rpartition(".")
            if owner in files:
                place = files[owner].relative_to(package).with_suffix("").as_posix()
                where = f"{file.relative_to(package).as_posix()}:{line}"
                found.setdefault(f"{place}.{last}", []).append(where)
    return found


def _bound(tree: ast.Module) -> set[str]:
    """The names that the module itself binds, but for functions, classes and imports."""
    found = set()
    for node in _outside_of_functions(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef):
            yield child
            yield from _outside_of_functions(child)


def _imported(
    tree: ast.Module, module: str, file: Path, files: dict[str, Path]
) -> Iterator[tuple[str, str]]:
    """What relative imports bind, and the module, or the name in one, that it is."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package.split(".")
            above = above[: len(above) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                if base in files or f"{base}.{alias.name}" in files:
                    yield alias.asname or alias.name, f"{base}.{alias.name}"


def _changed(tree: ast.Module, names: frozenset[str]) -> Iterator[tuple[str, int]]:
    """What functions change of these names: `works`, or `outstanding.works` by way of a module."""
    for function in ast.walk(tree):
        if not isinstance(function, Function):
            continue
        own = _locals(function)
        for node in _inside(function):
            if isinstance(node, ast.Global):
                yield from ((name, node.lineno) for name in node.names)
                continue
            changed: ast.AST | None = None
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                changed = node.value
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                changed = node
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                changed = node.func.value if node.func.attr in CHANGES else None
            path = _path(changed)
            if path and path[0] in names and path[0] not in own:
                yield ".".join(path[:2]), getattr(node, "lineno", 0)


def _changing_classes(tree: ast.Module) -> Iterator[str]:
    """The classes with a method, other than those that make an object, that changes it."""
    for made in ast.walk(tree):
        if not isinstance(made, ast.ClassDef):
            continue
        for method in made.body:
            if isinstance(method, ast.FunctionDef) and method.name not in ("__init__", "__new__"):
                first = [one.arg for one in (*method.args.posonlyargs, *method.args.args)][:1]
                whole = ast.Module([_without_arguments(method)], [])
                if any(True for _ in _changed(whole, frozenset(first))):
                    yield made.name
                    break


def _without_arguments(method: ast.FunctionDef) -> ast.FunctionDef:
    """So that `self` is none of its own names."""
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.FunctionDef(method.name, nothing, method.body, [], lineno=method.lineno)


def _objects(tree: ast.Module, changing: set[str]) -> Iterator[tuple[str, int]]:
    """Names of the module for objects of these classes."""
    for node in tree.body:
        made = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if (
            isinstance(made, ast.Call)
            and _path(made.func)[-1:]
            and _path(made.func)[-1] in changing
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[union-attr]
            yield from ((one.id, made.lineno) for one in targets if isinstance(one, ast.Name))


def _path(node: ast.AST | None) -> list[str]:
    """["outstanding", "works"] for that attribute; [] for what is no chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, Function):
            yield from _inside(child)


def _locals(function: Function) -> set[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    stored = {
        node.id
        for node in _inside(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    shared = {
        name for node in _inside(function) if isinstance(node, ast.Global) for name in node.names
    }
    return ({one.arg for one in every} | stored) - shared
