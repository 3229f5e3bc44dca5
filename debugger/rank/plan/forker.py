"""The process that planned ranks are forked from: it has imported what they will import.

Its standard input is a `Request`. A rank that imports
its modules itself costs ten times the memory and twenty times the time of one that is forked from
a process that has them: so the first rank tells what it has imported, and all others share it. The
user's own modules are no part of that, for importing them may do anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import time
import traceback
import weakref
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed

from distcore.backend import UNBUFFERED

from ...record.requests.plan_request import Outcome, Request
from ...system import memory
from ..record import call_site
from . import child
from .asked_devices import decided
from .scheduler import PlanLimits, Scheduler

_PR_SET_PDEATHSIG = 1
_MEMORY_SHARE = 0.5
_ENOUGH_BYTES, _SHARE_OF_MUCH = 5 << 29, 0.125
"""A plan does with so much, and takes more only of a machine that has plenty."""
_USUAL_BYTES = 64 << 20
"""The memory of its own that a rank of a small program takes."""
_FIRST = ("torch.distributed.nn", "torch.optim", "torch.utils.data", "numpy")
"""Modules that most programs import later than the first rank can tell: each rank would do it by
itself."""
_NEVER = frozenset({"__main__", "__mp_main__", "sitecustomize", "usercustomize", "antigravity"})


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
            UNBUFFERED,
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
        _leave_libraries()
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
            self.scheduler.drop_lines(connection)
            request = replace(self._request, barriers_wait=self._barriers_wait)
            code = child.main(request, rank, connection, self.scheduler.found, self._entry)
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


def _leave_libraries() -> None:
    """Libraries of operators that are here already take themselves apart at the end of a process,
    which takes a rank a tenth of its time, and serves nobody where the process is gone then."""
    registry: Any = vars(weakref.finalize).get("_registry", {})
    for finalizer in list(registry):
        alive = finalizer.peek()
        if alive is not None and getattr(alive[1], "__name__", "") == "_del_library":
            finalizer.atexit = False


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
