"""In forked processes: `distdebug` with its warden and launcher, or the launcher alone.

The supervisor, its warden, the launcher (`forked_program.py`) and the ranks are forked, each from
the one above it, instead of being executed. All that they do then is the real thing: processes,
signals, the run directory, the report. What is left out is the start of Python (its hook is run by
hand), and torchrun. With `run --launcher mpi` the launcher is a real mpiexec; a process below it
forks the ranks for those that it starts (`mpi_in_fork.py`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from distdebug.hook import SITE
from distdebug.launch.mpi_launcher import SHIM
from distdebug.testing.channel import MessageChannel
from tests.support import forked_program, hook_by_hand, mpi_in_fork
from tests.support.in_fork import end, forked, surroundings

PROGRAM = Path(forked_program.__file__)


def supervise(
    _number: int,
    _count: int,
    channel: MessageChannel,
    request: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Be `distdebug`; never returns."""
    channel.close()
    listener.close()
    surroundings(request)
    end(lambda: _supervise(request["argv"], request.get("breaks", "")))


def launch(
    _number: int,
    _count: int,
    channel: MessageChannel,
    request: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Be the launcher, with nobody above it; never returns."""
    channel.close()
    listener.close()
    surroundings(request)
    end(lambda: _launch(request["argv"], dict(os.environb)))


def _supervise(argv: Sequence[str], breaks: str) -> None:
    from distdebug import cli
    from distdebug.supervisor.command import launch

    exec(breaks, {})
    sys.argv = ["distdebug", *argv]
    launch.subprocess = _Subprocess(subprocess)  # type: ignore[attr-defined]
    sys.exit(cli.main())


class _Subprocess:
    """The module `subprocess` for `supervisor.command.launch`, which starts the warden by it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def Popen(self, command: Sequence[str], **_options: Any) -> _Warden:
        return _Warden(int(command[-2]), int(command[-1]))


class _Warden:
    """What `subprocess.Popen` is for a warden that is forked."""

    def __init__(self, control: int, reports: int) -> None:
        self.returncode: int | None = None
        self.pid = forked(lambda: self._body(control, reports))

    def _body(self, control: int, reports: int) -> None:
        from distdebug.supervisor.command import warden

        os.setsid()
        os.closerange(3, min(control, reports))
        for descriptor in range(min(control, reports) + 1, 256):
            if descriptor not in (control, reports):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        warden.os = _Os(os)  # type: ignore[attr-defined]
        sys.argv = ["warden", str(control), str(reports)]
        warden.main()
        os._exit(0)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        ended = os.pidfd_open(self.pid)
        try:
            if self.returncode is None and not select.select([ended], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired("warden", timeout_s)
        finally:
            os.close(ended)
        code = self.poll()
        assert code is not None
        return code


class _Os:
    """The module `os` for the warden, which starts the command by it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def posix_spawn(
        self, path: bytes, argv: Sequence[bytes], env: Mapping[bytes, bytes], **options: Any
    ) -> int:
        words = list(map(os.fsdecode, argv))
        if Path(words[0]).name == "mpiexec":
            return forked(lambda: _become_mpiexec(path, words, env))
        if len(words) < 2 or Path(words[1]) != PROGRAM:
            return os.posix_spawn(path, argv, env, **options)
        return forked(lambda: _launch(words[1:], env))


def _launch(argv: Sequence[str], env: Mapping[bytes, bytes]) -> None:
    """What the launcher does, as if it had been executed."""
    _undo_warden()
    os.closerange(3, 256)
    _begin_python(argv, env)
    importlib.import_module("torch.distributed").set_debug_level_from_env()
    forked_program.main()


def _become_mpiexec(path: bytes, words: Sequence[str], env: Mapping[bytes, bytes]) -> None:
    """Be the mpiexec that `--launcher mpi` starts, above a process that forks the ranks."""
    _undo_warden()
    begin = next(at for at, word in enumerate(words) if Path(word).name == SHIM)
    begin += 3  # after the address and port of the ranks
    address = f"ranks-of-mpiexec-{os.getpid()}"
    listener = mpi_in_fork.listen(address)
    size = int(words[words.index("-n") + 1])
    body = functools.partial(_rank_of_mpiexec, words[begin:])
    forked(lambda: mpi_in_fork.serve(listener, size, body))
    stand_in = [sys.executable, "-IS", mpi_in_fork.__file__, address]
    os.closerange(3, 256)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python alone ignores them
    os.execve(path, [*words[:begin], *stand_in], env)


def _rank_of_mpiexec(words: Sequence[str], env: Mapping[str, str]) -> None:
    """What `python -u SCRIPT ...` does in this environment."""
    script = words[words.index("-u") + 1 :]
    hook = _begin_python(script, {os.fsencode(name): os.fsencode(env[name]) for name in env})
    torch = importlib.import_module("torch")
    torch.distributed.set_debug_level_from_env()
    torch.set_num_threads(1)  # see `forked_program.become`
    hook._install(torch)
    sys.path[0] = str(Path(script[0]).parent)
    runpy.run_path(script[0], run_name="__main__")


def _undo_warden() -> None:
    """What the warden has changed in itself is not for those that it starts."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _begin_python(argv: Sequence[str], env: Mapping[bytes, bytes]) -> Any:
    """As far as a Python comes before its program, of which `argv` are the words. The hook."""
    os.environb.clear()
    os.environb.update(env)
    for name in [one for one in sys.modules if one.split(".")[0] == "distdebug"]:
        del sys.modules[name]  # a program asks for it itself
    sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "Finder"]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # The first is to be the program's folder.
    sys.path[:0] = ["", *(one for one in paths if one and Path(one) != SITE)]
    sys.argv = list(argv)
    sys.modules.pop("sitecustomize", None)
    return hook_by_hand.run()
