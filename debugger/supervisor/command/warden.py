"""Stands between the supervisor and the command, so that nothing outlives the supervisor.

It runs as a process of its own, with two pipe ends: `main`. It is started before anything else, in
its own session (Ctrl-C reaches the supervisor alone), and is the subreaper of all that the command
starts. Every run waits for it, so it imports little. It is another process than the one that drains
the output: where the supervisor is killed, and one of the two with it, the other one ends the run.

Control, one JSON line: {"path", "argv", "env", "cwd", "network", "scratch"}, byte strings as
latin-1; and {"spare": [pid, ...]}. The end of that pipe means that the supervisor has closed it or
was killed: everything below but the spared and what is below them is SIGKILLed, again and again
until nothing is left, and the directory `scratch` is removed.
Reports, JSON lines: {"started": pid}, {"failed": text}, and {"pid", "status", "time_ns",
"monotonic_ns"} for each child or orphan that was reaped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time

from ...system.processes import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_CLONE_NEWNET = 0x4000_0000
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_OUTLIVED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A scheduler may send these to every process of a job."""


def become_subreaper(wanted: bool = True) -> bool:
    """Makes this process the parent of every orphan below it, or no longer (Linux only). Returns
    whether it was that before."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        before = ctypes.c_int()
        libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
        return bool(before.value)
    except (OSError, AttributeError):
        return False


def enter_network(path: str) -> None:
    """Moves this process, and what it will start, into another network namespace. Raises
    OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def kill_all_below(root: int, spared: Collection[int] = ()) -> None:
    """SIGKILLs everything below `root` (this process) until the last one is reaped, but for the
    `spared` and what is below them."""
    pause_s = _FIRST_PAUSE_S
    while True:
        tree = Tree()
        kept = {*spared, *tree.below(*spared)}
        left = [pid for pid in tree.below(root) if pid not in kept]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if kept and not left:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def ended_children() -> Iterator[dict[str, Any]]:
    """Reaps every child that has ended; of each: its pid, wait status, and when."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield {
            "pid": pid,
            "status": status,
            "time_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
        }


class Warden:
    """The event loop: sleeps until a child ends or the supervisor says something."""

    def __init__(self, control: int, reports: int) -> None:
        self._control = control
        self._reports = reports
        self._unread = b""
        self._scratch = b""
        self._spared: tuple[int, ...] = ()

    def run(self) -> None:
        become_subreaper()
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Handlers, since an ignored signal would stay ignored in the command; one that who started
        # the run has ignored (`nohup`) stays so there, as without us.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _OUTLIVED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        try:
            while True:
                ready = select.select([self._control, woken], [], [])[0]
                if woken in ready:
                    os.read(woken, 512)
                    self._reap()
                if self._control in ready and not self._listen():
                    break
        except OSError:
            pass  # the supervisor is gone, so is the pipe of the reports
        finally:
            kill_all_below(os.getpid(), self._spared)
            if self._scratch:
                import shutil  # only here: it would cost every start some milliseconds

                shutil.rmtree(self._scratch, ignore_errors=True)

    def _listen(self) -> bool:
        received = os.read(self._control, 1 << 16)
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "spare" in request:
                self._spared = tuple(request["spare"])
            else:
                self._start(request)
        return bool(received)

    def _start(self, request: dict[str, Any]) -> None:
        self._scratch = request["scratch"].encode("latin-1")
        try:
            if request["network"]:
                enter_network(request["network"])
            os.chdir(request["cwd"].encode("latin-1"))
            pid = os.posix_spawn(
                request["path"].encode("latin-1"),
                [word.encode("latin-1") for word in request["argv"]],
                {
                    name.encode("latin-1"): value.encode("latin-1")
                    for name, value in request["env"].items()
                },
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except OSError as error:
            self._report({"failed": error.strerror or str(error)})
        else:
            self._report({"started": pid})
            self._reap()

    def _reap(self) -> None:
        for end in ended_children():
            self._report(end)

    def _report(self, value: dict[str, Any]) -> None:
        os.write(self._reports, json.dumps(value).encode() + b"\n")


def main() -> None:
    control, reports = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (control, reports):
        os.set_inheritable(descriptor, False)
    Warden(control, reports).run()
    os._exit(0)
