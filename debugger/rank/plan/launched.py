"""A program that starts its ranks itself, by multiprocessing: run once, as the process that starts
them; the processes that it starts are the planned ranks.

A process is not started where the program says so, but at the first moment when the program asks
anything of any of them (that it ends, mostly): how many there are is known then. All of them are
forked from here, and each has what it would have had: by the methods `spawn` and `forkserver` its
object travels pickled into a process that has none of the program's own modules yet, by `fork` it
finds everything as it is here.
"""

from __future__ import annotations

import copy
import functools
import importlib
import io
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.spawn
import multiprocessing.util
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing import context, queues, reduction
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed
import torch.multiprocessing

from ...record.requests.plan_request import Outcome, Request
from ..record import call_site
from ..torch_private import planned_accelerator, planning
from ..torch_private.probe import before, patch
from . import child
from .child import flush, line_of_user, on_started_ranks, refuse
from .forker import Forker, decided

_METHODS = {"fork": "fork", "spawn": "spawn_posix", "forkserver": "forkserver"}
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
_OURS = ("DISTDEBUG", "TORCHDYNAMO_DISABLE", "CUDA_VISIBLE_DEVICES")
_POOLS = ("multiprocessing.pool", "concurrent.futures.process")
_USUAL_LOCAL_SIZE = 8


@dataclass(slots=True)
class Started:
    """A process that the program has started. `pickled` is empty where it is to be forked."""

    process: Any
    environment: Mapping[str, str]
    preparation: dict[str, Any]
    pickled: bytes = b""
    status: int | None = None


class Launcher:
    """The launcher in this process."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._pid = os.getpid()
        self.started: list[Started] = []
        self._over = False
        self._undo: list[Callable[[], None]] = []
        self.ends: list[int] = []
        """Closed when the ranks have ended: whoever waits at the other end of one sees it."""

    def run(self) -> None:
        """The program to its end, and its ranks."""
        self._observe()
        self._request = decided(self._request)
        if self._request.accelerator == "cuda":
            planned_accelerator.count_only(self._request.local_size or _USUAL_LOCAL_SIZE)
        signal.signal(signal.SIGALRM, self._out_of_time)
        signal.alarm(max(1, int(self._request.time_s)))
        code = 0
        sys.argv[:] = [self._request.target, *self._request.arguments]
        try:
            child.execute(self._request)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            code = 1
            traceback.print_exc()
        if not self.started:
            self._refuse(
                f"the program ended with exit code {code} and started no rank by multiprocessing; "
                "what it printed is in launcher.out and launcher.err of the run directory"
                if code
                else "the program started no rank by multiprocessing: write "
                "`distdebug plan -n N script` for one that a launcher starts"
            )
        if not self._over:
            self._plan()
        _leave()

    # -- what the program does -----------------------------------------------------------------

    def _observe(self) -> None:
        for method, file in _METHODS.items():
            module: Any = importlib.import_module(f"multiprocessing.popen_{file}")
            usual = module.Popen
            module.Popen = type("Popen", (PlannedProcess,), {"method": method, "launcher": self})
            self._undo.append(functools.partial(setattr, module, "Popen", usual))
        # Each start looks which of the others have ended, and none of them has begun.
        self._undo.append(patch(multiprocessing.process, "_cleanup", lambda _: lambda: None))
        for owner, name in (
            (queues.Queue, "get"),
            (queues.SimpleQueue, "get"),
            (multiprocessing.connection.Connection, "recv"),
            (multiprocessing.connection.Connection, "poll"),
            (multiprocessing.connection, "wait"),
        ):
            self._undo.append(before(owner, name, self._plan_started))
        self._undo += planning.refuse_groups(self._it_joins)
        on_started_ranks(self._it_starts)

    def _plan_started(self, *_: object, **__: object) -> None:
        if self.started:
            self.plan()

    def start(self, process: Any, popen: Any, method: str) -> int:
        """A process is started; its number."""
        if self._over:
            self._refuse(
                f"the program starts processes a second time{_at()}; plan exec plans the ranks of "
                "one world: plan them apart"
            )
        target = getattr(process, "_target", None)
        if getattr(target, "__module__", "") in _POOLS:
            self._refuse(f"the program starts a pool of processes{_at()}, which are no ranks")
        preparation = multiprocessing.spawn.get_preparation_data(process.name)
        # A copy, for a process that has been started forgets what it runs.
        started = Started(copy.copy(process), dict(os.environ), preparation)
        if method != "fork":
            text = io.BytesIO()
            context.set_spawning_popen(popen)
            try:
                reduction.dump(process, text)
            finally:
                context.set_spawning_popen(None)
            started.pickled = text.getvalue()
        self.started.append(started)
        return len(self.started) - 1

    def _it_joins(self, *_: object, **__: object) -> None:
        if os.getpid() == self._pid:
            self._refuse(
                f"the process that starts the others joins a group itself{_at()}, or makes a store "
                "for them, which is not planned"
            )

    def _it_starts(self, command: str) -> None:
        if os.getpid() == self._pid:
            self._refuse(
                f"the program starts ranks as commands{_at()} ({command}); only those started by "
                "multiprocessing are planned: write `distdebug plan -n N` and the ranks' script"
            )

    def _refuse(self, sentence: str) -> None:
        refuse(self._request.directory, Outcome.REFUSAL, sentence)

    def _out_of_time(self, *_: object) -> None:
        if not self._over:
            what = "waits for them" if self.started else "started none"
            self._refuse(f"after {self._request.time_s:g} s the process that starts ranks {what}")
        os._exit(0)  # what it does with results that no rank had is no part of the plan

    # -- the ranks -----------------------------------------------------------------------------

    def plan(self) -> None:
        """Run all that were started to their ends, once."""
        if os.getpid() == self._pid and not self._over:
            self._plan()

    def _plan(self) -> None:
        signal.alarm(0)
        self._over = True
        count = len(self.started)
        request = replace(
            self._request,
            world_size=count,
            ranks=tuple(range(count)),
            local_size=min(self._request.local_size or _USUAL_LOCAL_SIZE, count),
        )
        stale = planning.functions()
        forker = Forker(
            request, child.RankEntry(self._surround, lambda rank: self._enter(rank, stale))
        )
        forker.run()
        for rank, started in enumerate(self.started):
            status = forker.scheduler.ended.get(rank, 0)
            started.status = os.waitstatus_to_exitcode(status)
        for descriptor in self.ends:
            os.close(descriptor)
        if any(started.status for started in self.started) or forker.scheduler.cut:
            _leave()  # results that it would wait for never come
        signal.alarm(30)  # seconds for the program to go on, in case it starts more of them

    def _surround(self, rank: int) -> None:
        """In a rank, before anything of it: what is here for the launcher only is taken back."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        while self._undo:
            self._undo.pop()()
        for name in list(os.environ):
            if name.startswith(_OF_A_LAUNCHER):
                del os.environ[name]
        for name, value in self.started[rank].environment.items():
            if not name.startswith(_OURS):
                os.environ[name] = value

    def _enter(self, rank: int, stale: Mapping[int, tuple[ModuleType, str]]) -> int:
        started = self.started[rank]
        process = started.process
        if not started.pickled:
            planning.renew(stale, _modules_of_the_user().values())
            return int(process._bootstrap(parent_sentinel=None) or 0)
        for name in _modules_of_the_user():
            del sys.modules[name]
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        multiprocessing.process.current_process()._inheriting = True  # type: ignore[attr-defined]
        try:
            multiprocessing.spawn.prepare(started.preparation)
            process = pickle.loads(started.pickled)  # noqa: S301 - made here
        finally:
            del multiprocessing.process.current_process()._inheriting  # type: ignore[attr-defined]
        return int(process._bootstrap(parent_sentinel=None) or 0)


def _modules_of_the_user() -> dict[str, ModuleType]:
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name in ("__main__", "__mp_main__")
        or (
            getattr(module, "__file__", None)
            and call_site.frame_kind(str(module.__file__)) == call_site.USER
        )
    }


class _Given:
    """A descriptor that a forked process has already."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def detach(self) -> int:
        """The descriptor."""
        return os.dup(self._descriptor)


class PlannedProcess:
    """In the place of multiprocessing's Popen, of one of its methods: the process that it stands
    for is planned when somebody asks how it goes."""

    DupFd = staticmethod(_Given)
    launcher: Launcher
    method = "spawn"
    finalizer = None

    def __init__(self, process: Any) -> None:
        self._kept: list[int] = []
        self.sentinel, self._end = os.pipe()
        self.launcher.ends.append(self._end)
        self._at = self.launcher.start(process, self, self.method)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    @property
    def pid(self) -> int:
        return (1 << 22) + 1 + self._at  # which no other process of the machine has

    def duplicate_for_child(self, descriptor: int) -> int:
        kept = os.dup(descriptor)
        self._kept.append(kept)
        return kept

    def poll(self, flag: int = 0) -> int | None:
        del flag
        self.launcher.plan()
        return self.launcher.started[self._at].status

    def wait(self, timeout: float | None = None) -> int | None:
        del timeout
        return self.poll()

    def terminate(self) -> None:
        """Does nothing: the processes have ended when this could be meant for them."""

    kill = interrupt = close = terminate


def _leave() -> NoReturn:
    """End this process as planned, with what the program has printed so far."""
    flush()
    os._exit(0)


def _at() -> str:
    line = line_of_user()
    return f" at {line}" if line else ""


def main() -> None:
    request = Request.from_json(sys.stdin.read())
    os.environ.clear()
    os.environ.update(request.environment)
    torch.set_num_threads(1)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    for number, name in ((0, os.devnull), (1, "launcher.out"), (2, "launcher.err")):
        path = name if number == 0 else request.directory / name
        opened = os.open(path, flags if number else os.O_RDONLY, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    Launcher(request).run()
