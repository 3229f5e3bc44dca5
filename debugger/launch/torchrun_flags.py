"""Splits the arguments of `distdebug run` into ours, torchrun's and the script's.

torchrun's flags come from torch's own parser, so this file names only those it has rules for. That
parser is had without the 2 s that importing torch costs: its definition is found by its name in
the syntax tree of torch's source and executed alone, and so is each name that it uses. Where it
needs more than torch's source and the standard library, torch is imported after all.

Everything is checked here, before any process is started, because torchrun answers some of
these mistakes with a traceback, after 2 s.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, cast

from ..errors import UsageError
from ..record import torch_versions
from ..record.wording import nearest_word
from . import pythons
from .pythons import Python

_DEVICE_COUNTS = ("auto", "cpu", "gpu", "xpu")
_LARGEST_PORT = 65535


def expected_world_size(torchrun: argparse.Namespace) -> int | None:
    """Return the number of ranks of a single-node run, None where it cannot be known.

    It cannot be known on several nodes, for "auto", "gpu" and other devices (counting them
    needs torch), and for "cpu" on a machine that lets this process use some of its CPUs only,
    where releases of torch differ.
    """
    if node_range(torchrun.nnodes) != (1, 1):
        return None
    if torchrun.nproc_per_node == "cpu":
        cpus = os.cpu_count()
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus
        return cpus if cpus == usable else None
    return rank_count(torchrun.nproc_per_node, "--nproc-per-node")


def rank_count(value: str, flag: str) -> int | None:
    """Return the ranks per node that `value` asks for, None for the name of a device.

    Raises:
        UsageError: not a positive number; for `-n`, also an unknown word. (`--nproc-per-node`
            takes the names of devices that torch's extensions register.)
    """
    if re.fullmatch(r"[+-]?\d+", value):
        if int(value) < 1:
            raise UsageError(f"{flag} {value}: at least 1 rank is needed")
        return int(value)
    known = value in _DEVICE_COUNTS or (flag != "-n" and re.fullmatch(r"[a-z]\w+", value))
    if not known:
        raise UsageError(f"{flag} {value!r}: a number of ranks, or {', '.join(_DEVICE_COUNTS)}")
    return None


def node_range(nnodes: str) -> tuple[int, int]:
    """Return the (fewest, most) nodes of torchrun's `--nnodes`, written "2" or "1:4".

    Raises:
        UsageError: not of that form, or not 1 <= fewest <= most.
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", nnodes)
    if match:
        fewest = int(match[1])
        most = int(match[2] or match[1])
        if 1 <= fewest <= most:
            return fewest, most
    raise UsageError(f"--nnodes {nnodes!r}: a number of nodes, or a range such as 1:4")


def check_numbers(torchrun: argparse.Namespace) -> None:
    """Raise UsageError where a number contradicts another, before any rank is started."""
    ranks = rank_count(torchrun.nproc_per_node, "--nproc-per-node")
    _, most_nodes = node_range(torchrun.nnodes)
    node_rank: int = getattr(torchrun, "node_rank", 0)
    if not 0 <= node_rank < most_nodes:
        raise UsageError(f"--node-rank {node_rank}: --nnodes {torchrun.nnodes} has no such node")
    port: int | None = getattr(torchrun, "master_port", None)
    if port is not None and not 0 <= port <= _LARGEST_PORT:
        raise UsageError(f"--master-port {port}: a port is a number from 0 to {_LARGEST_PORT}")
    if torchrun.max_restarts < 0:
        raise UsageError(f"--max-restarts {torchrun.max_restarts}: it cannot be negative")
    if torchrun.local_ranks_filter:
        shown = torchrun.local_ranks_filter.split(",")
        if not all(re.fullmatch(r"\s*\d+\s*", rank) for rank in shown):
            raise UsageError(
                f"--local-ranks-filter {torchrun.local_ranks_filter!r}: "
                "ranks separated by commas, such as 0,2"
            )
        absent = [int(rank) for rank in shown if ranks is not None and int(rank) >= ranks]
        if absent:
            has = f"{ranks} ranks (0 to {ranks - 1})" if ranks and ranks > 1 else "rank 0 only"
            raise UsageError(
                f"--local-ranks-filter names rank {absent[0]}, but the node has {has}; raise -n "
                "or leave it out"
            )


_EXAMPLE = "-n 4 train.py"
_LOOPBACK = "127.0.0.1"
_RENDEZVOUS = (
    "master_addr",
    "master_port",
    "node_rank",
    "rdzv_backend",
    "rdzv_conf",
    "rdzv_endpoint",
    "rdzv_id",
)


@dataclass(frozen=True)
class RunRequest:
    """The request of one `distdebug run` command line.

    Attributes:
        own: distdebug's options, as its parser made them.
        own_arguments: the same as text, each flag with its value in one word.
        torchrun: torchrun's options, as torch's parser made them.
        torchrun_arguments: the same as text, for torchrun's command line; `-n` is translated.
        given: destinations (such as "master_port") that the command line named.
        script: the script, or the module or program where torchrun's flags say so.
        script_arguments: everything behind the script, untouched.
        python: what runs the script; this one, where `own` has no `--python`.
    """

    own: argparse.Namespace
    own_arguments: tuple[str, ...]
    torchrun: argparse.Namespace
    torchrun_arguments: tuple[str, ...]
    given: frozenset[str]
    script: str
    script_arguments: tuple[str, ...]
    python: Python

    @property
    def command_line(self) -> list[str]:
        """The words that follow "torchrun" on the command line that starts the ranks."""
        return [*self.torchrun_arguments, self.script, *self.script_arguments]


def split_command_line(argv: Sequence[str], own: argparse.ArgumentParser) -> RunRequest:
    """Split what follows `distdebug run` at the script, and the flags before it by owner.

    Flags of both parsers may stand in any order; both also accept `_` for `-` in long flags.
    `own` has flags only, no positionals, and wins where both parsers have a flag. A flag of
    `own` with an optional value (`nargs="?"`) takes it only as `--flag=value`.

    Raises:
        UsageError: an unknown or contradicting flag, a value that is missing or wrong, no
            script, or one that does not exist; the message is one sentence.
        SystemExit: `own` printed its help or version.
    """
    if argv[:1] in (["-h"], ["--help"]):
        _parse_own(own, argv[:1])
    splitter, rest = _divided(argv, own)
    namespace = _parse_own(own, splitter.own_arguments)
    if not rest:
        raise UsageError(f"no script given; write for example: {own.prog} {_EXAMPLE}")
    script, *script_arguments = rest
    if script.startswith("-"):
        raise UsageError(f"a script cannot begin with a dash: write ./{script}")
    torchrun = splitter.torchrun.parse_args([*splitter.torchrun_arguments, script])
    torchrun.training_script_args = script_arguments
    check_numbers(torchrun)
    _check_script(torchrun, splitter.python)
    return RunRequest(
        own=namespace,
        own_arguments=tuple(splitter.own_arguments),
        torchrun=torchrun,
        torchrun_arguments=tuple(splitter.torchrun_arguments),
        given=frozenset(splitter.given),
        script=script,
        script_arguments=tuple(script_arguments),
        python=splitter.python,
    )


def split_at_script(
    argv: Sequence[str], own: argparse.ArgumentParser
) -> tuple[list[str], list[str]]:
    """The flags before the script, and the script with what stands behind it, both as given."""
    _, rest = _divided(argv, own)
    before = len(argv) - len(rest)
    return list(argv[:before]), rest


@contextmanager
def free_port_arguments(
    request: RunRequest, environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, ...]]:
    """Yield flags that keep two runs on one machine from meeting at torchrun's port 29500.

    No flags where the user chose a rendezvous, by a flag or by a `PET_*` variable, or several
    nodes. Keep the context open for as long as torchrun runs: it holds the port, bound and not
    listening, so that nobody else is given it before torchrun listens there.

    A static rendezvous reaches the script's first line soonest: 1.67 s after the start, against
    1.87 s with c10d on port 0 and 1.76 s with --standalone (medians of 9 on a busy machine;
    fastest 1.35, 1.57 and 1.58 s).
    """
    chosen = request.torchrun.standalone or any(
        name in request.given or environ.get(f"PET_{name.upper()}") for name in _RENDEZVOUS
    )
    if chosen or node_range(request.torchrun.nnodes) != (1, 1):
        # Its store is on this host, where nobody needs more than loopback to reach it.
        alone = request.torchrun.standalone and not request.torchrun.local_addr
        yield ("--local-addr", _LOOPBACK) if alone else ()
        return
    with socket.socket() as holder:
        # With this option on both sides, torchrun can bind a port that is held but not listened on.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        yield ("--master-addr", _LOOPBACK, "--master-port", str(holder.getsockname()[1]))


def _divided(argv: Sequence[str], own: argparse.ArgumentParser) -> tuple[_Splitter, list[str]]:
    """Deal out the flags; also what follows them.

    Which flags torchrun has, and so where the script begins, depends on `--python`, which may stand
    behind some of them, and which the script may have, too. So they are divided by our own torch's
    flags first, and by the other's where that finds the flag before the script, or fails.
    """
    look = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    look.add_argument("--python", action="append", nargs="?", default=[])
    named = look.parse_known_args(argv)[0].python[:1]
    splitter = _Splitter(own, pythons.this())
    try:
        rest = splitter.read_flags(argv)
        if not any(word.startswith("--python=") for word in splitter.own_arguments):
            return splitter, rest
    except UsageError:
        if not any(named) or "--python" not in own._option_string_actions:
            raise
    splitter = _Splitter(own, pythons.asked(named[0]))
    rest = splitter.read_flags(argv)
    if f"--python={named[0]}" not in splitter.own_arguments:
        raise UsageError("--python must stand before the script")
    return splitter, rest


class _Splitter:
    """Walks over the flags in front of the script and deals them out to their owners."""

    def __init__(self, own: argparse.ArgumentParser, python: Python) -> None:
        self.python = python
        self.own_arguments: list[str] = []
        self.torchrun_arguments: list[str] = []
        self.given: set[str] = set()
        self._own_flags = own._option_string_actions
        self._ranks: dict[str, str] = {}  # how many ranks, by the flag that said so

    @cached_property
    def torchrun(self) -> argparse.ArgumentParser:
        """Its parser, once a word is met that is none of ours."""
        return torchrun_parser(self.python)

    @property
    def _torchrun_flags(self) -> Mapping[str, argparse.Action]:
        return self.torchrun._option_string_actions

    def read_flags(self, argv: Sequence[str]) -> list[str]:
        """Deal out the flags of `argv`; return the script and what stands behind it."""
        waiting = list(argv)
        while waiting and waiting[0].startswith("-") and waiting[0] != "-":
            word = waiting.pop(0)
            if word == "--":
                break
            self._read_flag(word, waiting)
        self._settle_ranks()
        return waiting

    def _read_flag(self, word: str, waiting: list[str]) -> None:
        flag, value = self._divide(word)
        if flag == "-n":
            self._ranks["-n"] = value if value is not None else self._next_value(flag, waiting)
            return
        action = self._own_flags.get(flag)
        target = self.own_arguments
        if action is None:
            action = self._torchrun_flags[flag]
            target = self.torchrun_arguments
            self.given.add(action.dest)
        if action.nargs == 0:
            if value is not None:
                raise UsageError(f"{flag} takes no value, but was given {value!r}")
            target.append(flag)
        elif isinstance(action.nargs, int):
            target += [flag, *(self._next_value(flag, waiting) for _ in range(action.nargs))]
        elif action.nargs == "?" and value is None:
            target.append(flag)
        else:
            if value is None:
                value = self._next_value(flag, waiting)
            if target is self.torchrun_arguments and action.dest == "nproc_per_node":
                self._ranks["--nproc-per-node"] = value
            else:
                target.append(f"{flag}={value}" if flag.startswith("--") else f"{flag}{value}")

    def _divide(self, word: str) -> tuple[str, str | None]:
        """Return a known flag as its parser spells it, and the value attached to it."""
        name, equals, value = word.partition("=")
        for spelling in (name, re.sub("(?<!^)(?<!^-)_", "-", name)):
            if spelling == "-n" or spelling in self._own_flags or spelling in self._torchrun_flags:
                return spelling, value if equals else None
        short, attached = word[:2], word[2:]
        if not word.startswith("--"):
            action = self._own_flags.get(short) or self._torchrun_flags.get(short)
            if short == "-n" or (action is not None and action.nargs != 0):
                return short, attached
        raise self._unknown(name)

    def _next_value(self, flag: str, waiting: list[str]) -> str:
        follows = waiting[0] if waiting else None
        if follows is None:
            raise UsageError(f"{flag} needs a value")
        if follows.startswith("-") and not re.fullmatch(r"-(\d.*|\.\d.*)?", follows):
            raise UsageError(f"{flag} needs a value, but {follows!r} follows")
        return waiting.pop(0)

    def _unknown(self, flag: str) -> UsageError:
        known = [*self._own_flags, *(name for name in self._torchrun_flags if "_" not in name)]
        meant = nearest_word(flag, known)
        return UsageError(
            f"unknown flag {flag!r}: did you mean {meant}?"
            if meant
            else f"unknown flag {flag!r}: see `distdebug run --help` and `torchrun --help` "
            "(the script's own arguments come behind the script)"
        )

    def _settle_ranks(self) -> None:
        for flag, value in self._ranks.items():
            rank_count(value, flag)
        if not self._ranks:
            return
        if len(set(self._ranks.values())) > 1:
            raise UsageError(
                f"-n {self._ranks['-n']} contradicts "
                f"--nproc-per-node {self._ranks['--nproc-per-node']}: give one of them"
            )
        self.given.add("nproc_per_node")
        self.torchrun_arguments.append(f"--nproc-per-node={next(iter(self._ranks.values()))}")


def _parse_own(own: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    def raise_usage_error(message: str) -> NoReturn:
        raise UsageError(message)

    usual = own.error
    own.error = raise_usage_error  # type: ignore[method-assign]
    try:
        return own.parse_args(arguments)
    finally:
        own.error = usual  # type: ignore[method-assign]


def _check_script(torchrun: argparse.Namespace, python: Python) -> None:
    script: str = torchrun.training_script
    if torchrun.run_path or not (torchrun.module or torchrun.no_python):
        _check_file(Path(script))
    elif torchrun.module and torchrun.no_python:
        raise UsageError("--module and --no-python exclude each other: give one of them")
    elif torchrun.no_python:
        if shutil.which(script) is None:
            raise UsageError(f"--no-python {script!r}: no such program on PATH")
    elif "PYTHON_EXEC" not in os.environ:  # with it, the ranks run another Python
        top = script.partition(".")[0]
        found = importlib.machinery.PathFinder.find_spec(top, [os.getcwd(), *python.path])
        if found is None and top not in sys.stdlib_module_names:
            raise UsageError(f"-m {script!r}: {python.executable} finds no module {top!r}")


def _check_file(script: Path) -> None:
    if script.is_dir():
        if not (script / "__main__.py").exists():
            raise UsageError(f"{str(script)!r} is a folder without a __main__.py, not a script")
    elif not script.exists():
        raise UsageError(f"the script {str(script)!r} does not exist")
    elif not os.access(script, os.R_OK):
        raise UsageError(f"the script {str(script)!r} cannot be read")


class _Names(dict[str, Any]):
    """The names at the top of one of torch's modules, each taken from its source when it is first
    asked for: by a function, too, whose globals these are. A statement is executed alone, and only
    the standard library is imported.

    Args:
        folder: that of the package torch.
        module: the module's name, such as "torch.distributed.run".
    """

    def __init__(self, folder: Path, module: str) -> None:
        super().__init__(__name__=module)
        self._folder = folder
        base = folder.joinpath(*module.split(".")[1:])
        file = base.with_name(base.name + ".py")
        if not file.is_file():
            file = base / "__init__.py"
        self._package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        self._bound: dict[str, ast.stmt] = {}
        for statement in _statements(ast.parse(file.read_text(encoding="utf-8"))):
            for name in _bound_names(statement):
                self._bound.setdefault(name, statement)

    def __missing__(self, name: str) -> Any:
        statement = self._bound[name]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            alias = next(one for one in statement.names if _alias_binds(one) == name)
            source = alias.name
            if isinstance(statement, ast.ImportFrom):
                source = "." * statement.level + (statement.module or "")
                source = importlib.util.resolve_name(source, self._package)
            top = source.partition(".")[0]
            if isinstance(statement, ast.ImportFrom) and top == "torch":
                self[name] = _Names(self._folder, source)[alias.name]
                return self[name]
            if top not in sys.stdlib_module_names:
                raise ImportError(f"{source} is needed, and is not imported for this")
        # Annotations stay text: they name types that nothing here needs. It is the code that
        # would run if the package were imported.
        body = ast.Module(body=[statement], type_ignores=[])
        flags = annotations.compiler_flag
        exec(compile(body, self["__name__"], "exec", flags, dont_inherit=True), self)  # noqa: S102
        return self[name]


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
    folder = _torch_directory(python)
    try:
        try:
            parser = _Names(folder, _MODULE)[_FUNCTION]()
        except ValueError:  # PET_MODULE=yes, where torch wants a number
            raise
        except Exception as error:
            if not python.is_this:
                instead = f"`distdebug exec -- {python.executable} -m {_MODULE} ...` needs none"
                raise UsageError(
                    f"that torch has no usable torchrun ({error}); {instead}"
                ) from error
            parser = _imported_maker()()
    except ValueError as error:
        raise UsageError(f"torchrun does not accept a PET_* variable: {error}") from error
    parser.error = _raise_usage_error
    return cast("argparse.ArgumentParser", parser)


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


def _imported_maker() -> Callable[[], argparse.ArgumentParser]:
    try:
        return cast(
            "Callable[[], argparse.ArgumentParser]",
            getattr(importlib.import_module(_MODULE), _FUNCTION),
        )
    except Exception as error:
        raise UsageError(
            f"this torch has no usable torchrun ({type(error).__name__}: {error}); "
            "`distdebug exec -- COMMAND` needs none"
        ) from error


def _raise_usage_error(message: str) -> NoReturn:
    raise UsageError(f"torchrun: {message}")
