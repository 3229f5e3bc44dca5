"""Runs `distdebug exec` in processes that are forked where torch is loaded already.

A run whose ranks import torch one by one costs 2 s of a core for each of them, which is most of
what a test of a verdict costs. Here one process has torch loaded; the supervisor, its warden, the
launcher (`forked_program.py`) and the ranks are forked from it instead of being executed. All that
they do then is the real thing: processes, signals, the run directory, the report. What is left out
is the start of Python (its hook is run by hand), and torchrun.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tests.support import forked_program, runs

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(forked_program.__file__)
LOAD_S = 240.0
"""The first answer waits for torch; beside other work that takes its time."""
_MODULES = (
    "torch.distributed",
    "torch._dynamo",  # the first DistributedDataParallel imports it, which takes 3 s
    "distcore.connecting",
    "debugger.commands.session",
    "debugger.commands.exec",
    "debugger.cli",
)
_SITE = ROOT / "debugger" / "hook" / "site" / "sitecustomize.py"


class Zygote:
    """The process that has torch loaded, as tests see it. One run at a time."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._received = b""

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
    ) -> int:
        """Start `distdebug <arguments>` in a session of its own, with its output in the two
        files; its process id."""
        request = {
            "argv": list(arguments),
            "cwd": str(cwd),
            "env": dict(env),
            "output": [str(stdout), str(stderr)],
        }
        self._channel.sendall(json.dumps(request).encode() + b"\n")
        return int(self._answer(LOAD_S)["pid"])

    def run(
        self,
        size: int,
        program: Sequence[str],
        tmp_path: Path,
        flags: Sequence[str] = (),
        extra: Mapping[str, str] | None = None,
        limit_s: float = runs.LIMIT_S,
    ) -> runs.Run:
        """Run a script, with its arguments, on `size` ranks to the end, as `runs.run` does: below
        `distdebug exec`, with these flags."""
        directory, stdout, stderr = (tmp_path / name for name in ("run", "stdout", "stderr"))
        arguments = ["exec", "--run-dir", str(directory), *flags]
        arguments += ["--", sys.executable, str(PROGRAM), str(size), *program]
        pid = self.start(arguments, tmp_path, runs.environment(extra), stdout, stderr)
        try:
            code = self.wait(limit_s)
        except TimeoutError:
            os.kill(pid, signal.SIGINT)
            self.wait(60)
            text = stderr.read_text(errors="replace")[-6000:]
            raise AssertionError(f"distdebug did not end within {limit_s} s\n{text}") from None
        return runs.Run(code, *(path.read_text() for path in (stdout, stderr)), directory)

    def wait(self, timeout_s: float) -> int:
        """The exit code of what was started last, as a shell gives it. Raises TimeoutError."""
        return int(self._answer(timeout_s)["code"])

    def close(self) -> None:
        """End it."""
        self._channel.close()
        self._process.wait(30)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        while b"\n" not in self._received:
            if not select.select([self._channel], [], [], timeout_s)[0]:
                raise TimeoutError(f"no answer in {timeout_s} s")
            received = self._channel.recv(1 << 16)
            if not received:
                raise RuntimeError("the process that has torch loaded has ended")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


# -- in the process that has torch loaded ---------------------------------------------------------


def serve(channel: socket.socket) -> None:
    """Fork what is asked for, until the other end is closed."""
    _load()
    requests = channel.makefile("rb")
    for line in requests:
        pid = _forked(lambda line=line: _supervise(channel, json.loads(line)))
        channel.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        channel.sendall(json.dumps({"code": code if code >= 0 else 128 - code}).encode() + b"\n")


def _load() -> None:
    """Import, once for all, whatever a supervisor and a rank import."""
    environment = dict(os.environ)
    for name in _MODULES:
        importlib.import_module(name)
    _hook().load("rank.install")
    os.environ.clear()
    os.environ.update(environment)
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        raise RuntimeError(f"{len(threads)} threads: what is forked would lack all but one of them")


def _forked(body: Callable[[], None]) -> int:
    """The process id of a child that does this and ends as a Python program does."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        _end(body)
    return pid


def _end(body: Callable[[], None]) -> NoReturn:
    """End the process as Python does at the end of a program that is `body`. Nothing may be raised
    from here: below on the stack is the code of those from whom this process was forked."""
    code = 0
    try:
        body()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


# At the end of a rank no line of its program is on the stack, and this one is none of it.
_end.__code__ = _end.__code__.replace(co_filename="<frozen zygote>")


def _supervise(channel: socket.socket, request: Mapping[str, Any]) -> None:
    """What `distdebug` does, in a process of its own."""
    from debugger import cli
    from debugger.supervisor import launch

    channel.close()
    os.setsid()
    for number, path in enumerate(["/dev/null", *request["output"]]):
        flags = os.O_RDWR if not number else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update({"OMP_NUM_THREADS": "1", **request["env"]})  # as torchrun
    os.chdir(request["cwd"])
    sys.argv = ["distdebug", *request["argv"]]
    launch.subprocess = _Subprocess(subprocess)  # type: ignore[attr-defined]
    sys.exit(cli.main())


class _Subprocess:
    """The module `subprocess` for `supervisor.launch`, which starts the warden by it."""

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
        self.pid = _forked(lambda: self._body(control, reports))

    def _body(self, control: int, reports: int) -> None:
        from debugger.supervisor import warden

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
        end = os.pidfd_open(self.pid)
        try:
            if self.returncode is None and not select.select([end], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired("warden", timeout_s)
        finally:
            os.close(end)
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
        return _forked(lambda: _launch(list(map(os.fsdecode, argv[1:])), env))


def _launch(argv: list[str], env: Mapping[bytes, bytes]) -> None:
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
    sys.path[:0] = [one for one in paths if one and Path(one) != _SITE.parent]
    sys.argv = argv
    for name in ("sitecustomize", "tests.support.zygote"):
        sys.modules.pop(name, None)
    _hook()
    importlib.import_module("torch.distributed").set_debug_level_from_env()
    forked_program.main()


def _hook() -> Any:
    """Run the hook of `debugger.hook` as the start of Python does; its names."""
    spec = importlib.util.spec_from_file_location("sitecustomize", _SITE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
