"""In forked processes: `distdebug exec` with its warden and launcher, or the launcher alone.

The supervisor, its warden, the launcher (`forked_program.py`) and the ranks are forked, each from
the one above it, instead of being executed. All that they do then is the real thing: processes,
signals, the run directory, the report. What is left out is the start of Python (its hook is run by
hand), and torchrun.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from debugger.hook import SITE
from debugger.testing.channel import Channel
from tests.support import forked_program, hook_by_hand
from tests.support.in_fork import end, forked, surroundings

PROGRAM = Path(forked_program.__file__)


def supervise(
    _number: int, _count: int, channel: Channel, request: Mapping[str, Any], listener: socket.socket
) -> None:
    """Be `distdebug`; never returns."""
    channel.close()
    listener.close()
    surroundings(request)
    end(lambda: _supervise(request["argv"], request.get("breaks", "")))


def launch(
    _number: int, _count: int, channel: Channel, request: Mapping[str, Any], listener: socket.socket
) -> None:
    """Be the launcher, with nobody above it; never returns."""
    channel.close()
    listener.close()
    surroundings(request)
    end(lambda: _launch(request["argv"], dict(os.environb)))


def _supervise(argv: Sequence[str], breaks: str) -> None:
    from debugger import cli
    from debugger.supervisor.command import launch

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
        from debugger.supervisor.command import warden

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
        if len(argv) < 2 or Path(os.fsdecode(argv[1])) != PROGRAM:
            return os.posix_spawn(path, argv, env, **options)
        return forked(lambda: _launch(list(map(os.fsdecode, argv[1:])), env))


def _launch(argv: Sequence[str], env: Mapping[bytes, bytes]) -> None:
    """What the launcher does, as if it had been executed."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.closerange(3, 256)
    os.environb.clear()
    os.environb.update(env)
    for name in [one for one in sys.modules if one.split(".")[0] == "debugger"]:
        del sys.modules[name]  # in a rank the layer has another name; see the hook
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # The first is to be the program's folder.
    sys.path[:0] = ["", *(one for one in paths if one and Path(one) != SITE)]
    sys.argv = list(argv)
    sys.modules.pop("sitecustomize", None)
    hook_by_hand.run()
    importlib.import_module("torch.distributed").set_debug_level_from_env()
    forked_program.main()
