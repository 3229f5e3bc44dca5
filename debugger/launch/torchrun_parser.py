"""torchrun's own argument parser, had without the 2 s that importing torch costs.

Its definition is taken out of torch's source: it is found by its name in the syntax tree and
executed alone, together with what it names. The standard library is imported for real, names from
the same package are taken in the same way, and everything else becomes a placeholder that raises
`NotTakenError` when it is used. So a definition that needs more than this fails loudly, and the
caller can import it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

from ..errors import UsageError
from ..record import torch_versions
from . import pythons
from .pythons import Python


class NotTakenError(Exception):
    """The definition is not where it was looked for, or needs more than its source."""


class _Placeholder:
    """Stands for a name that could not be taken; any use of it raises `NotTakenError`."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        name = self.__dict__["_name"]
        raise NotTakenError(f"{name} is needed, and cannot be had without importing its package")

    __getattr__ = __call__ = __iter__ = __getitem__ = __bool__ = __mro_entries__ = _refuse


class PackageSource:
    """The source files of one package, from which definitions are taken by name.

    Args:
        name: the package's import name, such as "torch".
        directory: the folder that holds its `__init__.py`.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._trees: dict[str, ast.Module] = {}
        self._taken: dict[tuple[str, str], Any] = {}

    def take(self, module: str, name: str) -> Any:
        """Return the object that `name` is bound to at the top of `module`.

        Raises:
            NotTakenError: there is no such file or name, or executing it needs something that
                is neither in the standard library nor a definition in this package's source.
        """
        key = (module, name)
        if key not in self._taken:
            self._taken[key] = _Placeholder(f"{module}.{name}")  # ends a cycle of references
            try:
                self._taken[key] = self._evaluate(module, name)
            except NotTakenError:
                del self._taken[key]
                raise
            except Exception as error:
                del self._taken[key]
                raise NotTakenError(f"{module}.{name}: {type(error).__name__}: {error}") from error
        return self._taken[key]

    def _evaluate(self, module: str, name: str) -> Any:
        for statement in _statements(self._tree(module)):
            if name not in _bound_names(statement):
                continue
            if isinstance(statement, ast.Import | ast.ImportFrom):
                return self._imported(module, statement, name)
            return self._execute(module, statement, name)
        raise NotTakenError(f"{module} defines no {name}")

    def _execute(self, module: str, statement: ast.stmt, name: str) -> Any:
        at_the_top = {
            bound
            for other in _statements(self._tree(module))
            if other is not statement
            for bound in _bound_names(other)
        }
        namespace: dict[str, Any] = {"__name__": module}
        for used in {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}:
            if used in at_the_top:
                try:
                    namespace[used] = self.take(module, used)
                except NotTakenError:
                    namespace[used] = _Placeholder(f"{module}.{used}")
        code = compile(
            ast.Module(body=[statement], type_ignores=[]),
            filename=str(self._file(module)),
            mode="exec",
            # Annotations stay text: they name types that nothing here needs.
            flags=annotations.compiler_flag,
            dont_inherit=True,
        )
        # It is the code that would run if the package were imported.
        exec(code, namespace)  # noqa: S102
        return namespace[name]

    def _imported(self, module: str, statement: ast.Import | ast.ImportFrom, name: str) -> Any:
        alias = next(alias for alias in statement.names if _alias_binds(alias) == name)
        if isinstance(statement, ast.Import):
            target = alias.name if alias.asname else alias.name.partition(".")[0]
            return _standard_library(target)
        source = self._absolute(module, statement)
        if source.partition(".")[0] == self._name:
            return self.take(source, alias.name)
        return getattr(_standard_library(source), alias.name)

    def _absolute(self, module: str, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = module.split(".")
        is_package = self._file(module).name == "__init__.py"
        kept = parts[: len(parts) - statement.level + is_package]
        return ".".join([*kept, *([statement.module] if statement.module else [])])

    def _file(self, module: str) -> Path:
        base = self._directory.joinpath(*module.split(".")[1:])
        for candidate in (base.with_name(base.name + ".py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate
        raise NotTakenError(f"{module} has no source file under {self._directory}")

    def _tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            self._trees[module] = ast.parse(self._file(module).read_text(encoding="utf-8"))
        return self._trees[module]


def _standard_library(module: str) -> Any:
    if module.partition(".")[0] not in sys.stdlib_module_names:
        raise NotTakenError(f"{module} is not in the standard library")
    return importlib.import_module(module)


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements at the top of a module, those under `if` and `try` included."""
    waiting = list(reversed(tree.body))
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.If):
            waiting += reversed([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            waiting += reversed([*statement.body, *statement.orelse, *statement.finalbody])
        else:
            yield statement


def _bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {_alias_binds(alias) for alias in statement.names}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


def _alias_binds(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


_MODULE = "torch.distributed.run"
_FUNCTION = "get_args_parser"

ParserMaker = Callable[[], argparse.ArgumentParser]


def torchrun_parser(python: Python | None = None) -> argparse.ArgumentParser:
    """Return the parser of that Python's torchrun (by default of this one's); its errors raise
    `UsageError`.

    The defaults are torch's, so the `PET_*` environment variables count as torchrun counts them.
    The parser is taken from torch's source; where that fails, this Python imports torch after all.

    Raises:
        UsageError: torch is not installed, is too old, cannot be imported, or refuses a `PET_*`
            variable.
    """
    python = python or pythons.this()
    try:
        parser = _call(PackageSource("torch", _torch_directory(python)).take(_MODULE, _FUNCTION))
    except NotTakenError as error:
        if not python.is_this:
            instead = f"`distdebug exec -- {python.executable} -m {_MODULE} ...` needs none"
            raise UsageError(f"that torch has no usable torchrun ({error}); {instead}") from error
        parser = _call(_imported_maker())
    parser.error = _raise_usage_error  # type: ignore[method-assign]
    return parser


def _torch_directory(python: Python) -> Path:
    install = "pip install" if python.is_this else f"{python.executable} -m pip install"
    if not python.torch:
        raise UsageError(
            f"torch is not installed in {python.executable}, and `distdebug run` starts torchrun: "
            f"{install} torch, or name the Python that has it: distdebug run --python PATH ..."
        )
    folder = Path(python.torch[0])
    if not any(folder.glob("_C*")):
        raise UsageError(
            f"torch cannot be imported: {folder} lacks its C++ part (torch._C); install it anew: "
            f"{install} --force-reinstall torch"
        )
    old = torch_versions.too_old(torch_versions.of_package(folder))
    if old:
        raise UsageError(f"{old}: {install} --upgrade torch")
    return folder


def _imported_maker() -> ParserMaker:
    try:
        return cast("ParserMaker", getattr(importlib.import_module(_MODULE), _FUNCTION))
    except Exception as error:
        raise UsageError(
            f"this torch has no usable torchrun ({type(error).__name__}: {error}); "
            "`distdebug exec -- COMMAND` needs none"
        ) from error


def _call(maker: ParserMaker) -> argparse.ArgumentParser:
    try:
        return maker()
    except ValueError as error:  # PET_MODULE=yes, where torch wants a number
        raise UsageError(f"torchrun does not accept a PET_* variable: {error}") from error


def _raise_usage_error(message: str) -> NoReturn:
    raise UsageError(f"torchrun: {message}")
