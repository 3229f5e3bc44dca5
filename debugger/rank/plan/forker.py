"""The process that planned ranks are forked from: it has imported what they will import.

Its standard input is a `Request`. A rank that imports
its modules itself costs ten times the memory and twenty times the time of one that is forked from
a process that has them: so the first rank tells what it has imported, and all others share it. The
user's own modules are no part of that, for importing them may do anything.

A program is one for GPUs where its source (its script, and the modules of its own) names NCCL; or
where it names devices of CUDA, or asks for an accelerator, and names no backend that is for the
CPU. What it names in comments does not count.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import importlib
import os
import re
import resource
import signal
import socket
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from typing import Any, NoReturn

import torch
import torch.distributed

from distcore.backend import BUFFERS

from ...record.requests.plan_request import Outcome, Request
from ...system import memory
from ..record import call_site
from . import child
from .scheduler import PlanLimits, Scheduler

_PR_SET_PDEATHSIG = 1
_MEMORY_SHARE = 0.5
_ENOUGH_BYTES, _SHARE_OF_MUCH = 5 << 29, 0.125
"""A plan does with so much, and takes more only of a machine that has plenty."""
_USUAL_BYTES = 64 << 20
"""The memory of its own that a rank of a small program takes."""
_FIRST = ("torch.distributed.nn", "torch.optim", "torch.utils.data", "numpy", "structlog")
"""Modules that most programs, or their log, import later than the first rank can tell: each rank
would do it by itself."""
_NEVER = frozenset({"__main__", "__mp_main__", "sitecustomize", "usercustomize", "antigravity"})


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
                # `cpu:gloo,cuda:nccl` is a backend, too.
                lower = text.lower()
                words = {part.rpartition(":")[2] for part in lower.split(",")}
                found.nccl = found.nccl or "nccl" in words
                found.cpu_backend = found.cpu_backend or bool(words & _ON_CPUS)
                found.cuda = found.cuda or _DEVICE.fullmatch(lower) is not None
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


class Forker:
    """This process, for one plan. `entry`: what a rank is, if not the program from its start."""

    def __init__(self, request: Request, entry: child.RankEntry | None = None) -> None:
        self._entry = entry
        memory_bytes = request.memory_bytes
        if not memory_bytes:
            available = memory.available_bytes()
            enough = max(_ENOUGH_BYTES, int(available * _SHARE_OF_MUCH))
            memory_bytes = min(enough, int(available * _MEMORY_SHARE))
        self._request = decided(request)
        self._fit = len(request.ranks) * _USUAL_BYTES <= memory_bytes
        limits = PlanLimits(request.jobs, memory_bytes, request.time_s)
        self.scheduler = Scheduler(
            request.directory, list(request.ranks), limits, self._fork, self._import_all
        )

    def run(self) -> None:
        """All ranks, to their ends."""
        began_s = time.monotonic()
        # Every rank that waits takes two descriptors here.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._import_all(_FIRST)
        with contextlib.closing(self.scheduler):
            self.scheduler.run()
        scheduler = self.scheduler
        outcome = Outcome(
            scheduler.ended,
            scheduler.cut,
            scheduler.runs,
            time.monotonic() - began_s,
            scheduler.most_bytes,
            scheduler.most_waiting,
            self._request.accelerator,
            BUFFERS,
        )
        path = self._request.directory / Outcome.NAME
        path.write_text(outcome.to_json())
        path.chmod(0o600)

    def _import_all(self, names: list[str] | tuple[str, ...]) -> None:
        """Import these, but for what is the user's own."""
        with contextlib.ExitStack() as quiet:
            nowhere = quiet.enter_context(open(os.devnull, "w"))
            quiet.enter_context(contextlib.redirect_stdout(nowhere))
            quiet.enter_context(contextlib.redirect_stderr(nowhere))
            for name in names:
                if name not in sys.modules and _is_installed(name):
                    with contextlib.suppress(Exception):
                        importlib.import_module(name)
        # Libraries of operators that are here already take themselves apart at the end of a
        # process, which takes a rank a tenth of its time, and serves nobody where the process is
        # gone then.
        registry: Any = vars(weakref.finalize).get("_registry", {})
        for finalizer in list(registry):
            alive = finalizer.peek()
            if alive is not None and getattr(alive[1], "__name__", "") == "_del_library":
                finalizer.atexit = False
        gc.collect()
        gc.freeze()  # what is here already is garbage for no rank, and need not be copied for it

    def _fork(self, rank: int, connection: socket.socket) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            self._become_rank(rank, connection)
        return pid

    def _become_rank(self, rank: int, connection: socket.socket) -> NoReturn:
        code = 120
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            with contextlib.suppress(OSError):
                os.setsid()
            # The first thread that asks for torch's pool after a fork makes it anew, and of two at
            # once one fails with "Invalid thread pool!": it is made before the program has threads.
            torch.set_num_threads(1)
            self.scheduler.drop_lines()
            request = replace(self._request, barriers_wait=self._barriers_wait)
            code = child.main(request, rank, connection, self.scheduler.board.found, self._entry)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    @property
    def _barriers_wait(self) -> bool:
        """Whether ranks wait at barriers. Between two of them a program may need what another rank
        did before, such as a file. Where not all ranks can be kept, and nothing may be taken for
        granted of those that have not come, each barrier would have most of them run again."""
        complete = len(self._request.ranks) == self._request.world_size
        return complete and (self._fit or self.scheduler.by_symmetry)


def _is_installed(name: str) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    top = name.partition(".")[0]
    if name in _NEVER or top in _NEVER:
        return False
    if top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    origin = None if spec is None else spec.origin
    if not origin:
        return False
    return call_site.frame_kind(origin) != call_site.USER


def main() -> None:
    request = Request.from_json(sys.stdin.read())
    os.environ.clear()
    os.environ.update(request.environment)
    torch.set_num_threads(1)
    Forker(request).run()
