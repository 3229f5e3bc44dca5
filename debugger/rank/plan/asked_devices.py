"""Whether a program is one for GPUs, as its source says: its script, and the modules of its own.

It is where it names NCCL; or where it names devices of CUDA, or asks for an accelerator, and names
no backend that is for the CPU. What it names in comments does not count.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder

from ...record.requests.plan_request import Request
from ..record import call_site

_MOST_FILES = 300
_MOST_BYTES = 1 << 20
_ON_CPUS = frozenset({"gloo", "mpi", "tcp", "ucc"})
_DEVICE = re.compile(r"cuda(:\d*)?")


@dataclass(slots=True)
class Named:
    """The names in a program that tell which devices it asks for."""

    nccl: bool = False
    cuda: bool = False
    cpu_backend: bool = False
    imports: list[tuple[int, str]] = field(default_factory=list)
    """(how many packages up, the module)"""

    @property
    def for_gpus(self) -> bool:
        return self.nccl or (self.cuda and not self.cpu_backend)


def decided(request: Request) -> Request:
    """The request with what is to be done about calls for `cuda` in place of "auto"."""
    if request.accelerator != "auto":
        return request
    return replace(request, accelerator="cuda" if asks_for_devices(request) else "none")


def asks_for_devices(request: Request) -> bool:
    """Whether the program that is to be planned is for GPUs."""
    first = _source(request)
    if not first:
        return False
    roots = [os.path.dirname(os.path.abspath(first)), os.getcwd()]
    found = Named()
    seen: set[str] = set()
    left = deque([first])
    while left and len(seen) < _MOST_FILES:
        path = left.popleft()
        if path in seen:
            continue
        seen.add(path)
        found.imports.clear()
        _read(path, found)
        if found.nccl:
            return True
        left.extend(_own_modules(path, found.imports, roots))
    return found.for_gpus


def _source(request: Request) -> str:
    """The file of the program; "" where it cannot be told before it runs."""
    if not request.is_module:
        folder_of = os.path.join(request.target, "__main__.py")
        return folder_of if os.path.isdir(request.target) else request.target
    names = request.target.split(".")
    files = list(_file_of(names, [os.getcwd(), *sys.path]))
    if files and os.path.basename(files[-1]) == "__init__.py":
        return os.path.join(os.path.dirname(files[-1]), "__main__.py")
    return files[-1] if files else ""


def _read(path: str, found: Named) -> None:
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(_MOST_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    explained = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(str() as text) if id(node) not in explained:
                _note(text, found)
            case ast.Attribute(_, "cuda" | "accelerator"):
                found.cuda = True
            case ast.Attribute(_, "NCCL"):
                found.nccl = True
            case ast.Import(names):
                found.imports += [(0, one.name) for one in names]
            case ast.ImportFrom(module, names, level):
                whole = module or ""
                found.imports.append((level or 0, whole))
                found.imports += [(level or 0, f"{whole}.{one.name}".strip(".")) for one in names]


def _note(text: str, found: Named) -> None:
    """`cpu:gloo,cuda:nccl` is a backend, too."""
    lower = text.lower()
    words = {part.rpartition(":")[2] for part in lower.split(",")}
    found.nccl = found.nccl or "nccl" in words
    found.cpu_backend = found.cpu_backend or bool(words & _ON_CPUS)
    found.cuda = found.cuda or _DEVICE.fullmatch(lower) is not None


def _own_modules(path: str, imports: list[tuple[int, str]], roots: list[str]) -> Iterator[str]:
    """The files of those modules that are the program's own."""
    for level, name in imports:
        if level:
            folder = os.path.dirname(path)
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            yield from _file_of(name.split("."), [folder])
        elif name.partition(".")[0] not in sys.stdlib_module_names:
            yield from _file_of(name.split("."), [*roots, *sys.path])


def _file_of(names: list[str], folders: list[str]) -> Iterator[str]:
    """The files of this module and of the packages that it is in, without importing any."""
    for name in filter(None, names):
        try:
            spec = PathFinder.find_spec(name, folders)
        except (ImportError, ValueError, AttributeError):
            return
        if spec is None:
            return
        if spec.origin and spec.has_location:
            if call_site.frame_kind(spec.origin) != call_site.USER:
                return
            if spec.origin.endswith(".py"):
                yield spec.origin
        folders = list(spec.submodule_search_locations or [])
        if not folders:
            return
