"""The supervisor's handle on the command: starts it below a warden, knows what became of it, and
ends its process tree: wakes what is stopped, asks politely, then kills."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING

from ...errors import DistdebugError, UsageError
from ...hook import loading
from ...record import steady_clock
from ...record.exits import ExitLog, ExitStatus
from ...record.limits import POLL_EVERY_S
from ...record.streams import readable
from ...system.processes import descendants
from ..limits import GONE_WITHIN_S, SILENT_S, WAKE_AFTER_S
from . import warden

if TYPE_CHECKING:
    from ...record.snapshot import Rank


class Launch:
    """A command, its warden, and all that lives below them.

    Make it first of all: the warden then starts up while the supervisor prepares. Statuses that
    the warden reaps (the command's, and orphans') go to `exits`. If this process dies, by SIGKILL
    too, the warden kills everything below it. `aside` is where all below writes that has no file
    of its own, for a run that does not have the terminal; then it cannot read from it either, but
    from `stdin`, where that is given.
    """

    def __init__(
        self,
        exits: ExitLog | None = None,
        aside: IO[bytes] | None = None,
        stdin: IO[bytes] | None = None,
    ) -> None:
        self.exits = exits if exits is not None else ExitLog()
        self.pid = 0
        """The command's process id; 0 before `start`."""
        # If even the warden is killed, its orphans come to us instead of escaping to init.
        self._was_subreaper = warden.become_subreaper()
        hears, self._control = os.pipe()
        self._reports, writes = os.pipe()
        os.set_blocking(self._reports, False)
        self._unread = b""
        self._failure: str | None = None
        self._status: ExitStatus | None = None
        try:
            for descriptor in (hears, writes):
                os.set_inheritable(descriptor, True)
            self._warden = subprocess.Popen(
                loading.command("supervisor.command.warden", str(hears), str(writes), alone=True),
                # What a launcher above us hands down (PMI_FD, a make jobserver) must arrive below.
                close_fds=False,
                start_new_session=True,
                stdin=subprocess.DEVNULL if aside and stdin is None else stdin,
                stdout=aside,
                stderr=aside,
            )
        finally:
            os.close(hears)
            os.close(writes)

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout_s: float = 30.0,
        network: str = "",
        scratch: str = "",
    ) -> None:
        """Starts the command with this process's standard streams, or those `aside`; in the network
        namespace to which the path `network` leads, where it is given. The directory `scratch` is
        removed when all that was started has ended, even if this process was killed.

        Raises UsageError where the command cannot be started, and DistdebugError where the
        warden does not answer.
        """
        environment = dict(os.environ if env is None else env)
        directory = os.getcwd() if cwd is None else os.fspath(cwd)
        request = {
            "path": _latin(find_command(command, environment, directory)),
            "argv": [_latin(word) for word in command],
            "env": {_latin(name): _latin(value) for name, value in environment.items()},
            "cwd": _latin(directory),
            "network": network,
            "scratch": _latin(scratch),
        }
        try:
            _write_all(self._control, json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise DistdebugError(f"the warden process has ended: {error.strerror}") from error
        deadline = time.monotonic() + timeout_s
        while not self.pid and self._failure is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self._wait_for_report(left_s):
                raise DistdebugError(f"the warden process did not start {command[0]!r}")
        if self._failure is not None:
            raise UsageError(f"cannot run {command[0]!r}: {self._failure.lower()}")

    def fileno(self) -> int:
        """Readable when the warden has news: `poll` then takes them in."""
        return self._reports

    def poll(self) -> ExitStatus | None:
        """Returns how the command ended; None while it runs. Also feeds `exits`. Cheap."""
        self._read_reports()
        if self._status is None and self.pid and self._warden.poll() is not None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._status = ExitStatus(None, int(signal.SIGKILL), steady_clock.now_ns())
            else:
                now_ns = steady_clock.now_ns()
                self._status = ExitStatus.from_wait(status, now_ns) if pid else None
        return self._status

    def wait(self, timeout_s: float) -> ExitStatus | None:
        """`poll`, for up to `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            if not self._wait_for_report(min(left_s, 1.0)):
                time.sleep(min(left_s, 0.01))
        return self._status

    def descendants(self) -> list[int]:
        """Every live process below the warden, parents first. One walk over all: some ms."""
        if self._warden.poll() is None:
            return descendants(self._warden.pid)
        # Without a warden its orphans are our children. They are in other sessions than we, which
        # nobody can come back from, and what we start ourselves (py-spy) is in ours.
        own = os.getsid(0)
        return [pid for pid in descendants(os.getpid()) if _session(pid) not in (own, 0)]

    def signal(self, number: int, pids: Iterable[int] | None = None) -> list[int]:
        """Sends a signal to the given processes, or to all below; returns who got it."""
        reached = []
        for pid in self.descendants() if pids is None else pids:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue
            reached.append(pid)
        return reached

    def daemons(self, ranks: Iterable[int]) -> list[int]:
        """Returns the processes that have left the sessions of the command and of these ranks, as a
        daemon does, and those below such a process."""
        own = {_session(self._warden.pid), *ranks, 0}
        left = [pid for pid in self.descendants() if _session(pid) not in own]
        return list(dict.fromkeys([*left, *descendants(*left)]))

    def spare(self, pids: Iterable[int]) -> None:
        """Let these live on when all else is ended."""
        with contextlib.suppress(OSError):
            _write_all(self._control, json.dumps({"spare": list(pids)}).encode() + b"\n")

    def close(self) -> None:
        """Has the warden kill whatever is left, and waits for it."""
        if self._control < 0:
            return
        os.close(self._control)
        self._control = -1
        try:
            self._warden.wait(GONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            pass  # a process in an uninterruptible wait; the warden stays until it is gone
        else:
            self._kill_without_warden()
        self.poll()
        os.close(self._reports)
        self._reports = -1
        warden.become_subreaper(self._was_subreaper)  # nobody here would reap what came then

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self.pid:
            return "<Launch: not started>"
        return f"<Launch of {self.pid}: {self._status or 'running'}>"

    def _wait_for_report(self, timeout_s: float) -> bool:
        """False when the warden has ended, or nothing came in time."""
        readable([self._reports], timeout_s)
        return self._read_reports()

    def _read_reports(self) -> bool:
        received = False
        while self._reports >= 0:
            try:
                data = os.read(self._reports, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                break
            received = True
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        return received

    def _take(self, report: dict[str, int | str]) -> None:
        if "failed" in report:
            self._failure = str(report["failed"])
        elif "started" in report:
            self.pid = int(report["started"])
        else:
            pid, status = int(report["pid"]), int(report["status"])
            self.exits.add(pid, status, int(report["time_ns"]), int(report["monotonic_ns"]))
            if pid == self.pid and self._status is None:
                self._status = self.exits.find(pid)

    def _kill_without_warden(self) -> None:
        """Ends what a warden had below it that was itself killed: it is ours to end."""
        if self._warden.returncode == 0:
            return
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := self.descendants()) and time.monotonic() < deadline:
            self.signal(signal.SIGKILL, left)
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.005)


def run_leaving_nothing(command: Sequence[str], text: str, env: Mapping[str, str]) -> ExitStatus:
    """Runs a command, which reads `text` from its standard input, to its end, and ends all that it
    has started then: in sessions of their own, too, and also if this process is killed."""
    with open(os.memfd_create("stdin"), "w+b") as stdin:
        stdin.write(text.encode())
        stdin.seek(0)
        with Launch(stdin=stdin) as launch:
            launch.start(command, env)
            while (ended := launch.wait(60.0)) is None:
                pass
            return ended


def find_command(command: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
    """The file that would be executed. Raises UsageError where there is none."""
    if not command:
        raise UsageError("no command was given; write one after `--`, e.g. distdebug exec -- CMD")
    if not os.path.isdir(cwd):
        raise UsageError(f"cannot run {command[0]!r}: there is no directory {cwd}")
    name = command[0]
    python = f"; a script of Python runs as `python {name}`" if name.endswith(".py") else ""
    if os.path.dirname(name):
        path = os.path.join(cwd, name)
        if not os.path.exists(path):
            raise UsageError(f"cannot run {name!r}: there is no such file")
        if os.path.isdir(path) or not os.access(path, os.X_OK):
            raise UsageError(f"cannot run {name!r}: it is not executable{python}")
        return path
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is None:
        raise UsageError(f"cannot run {name!r}: no such command on PATH{python}")
    return os.path.join(cwd, found)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _latin(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def forward(launch: Launch, number: int, grace_s: float, hasten: Callable[[], bool]) -> None:
    """Hand a signal on to the command, which knows how to end its own: torchrun sends it to its
    ranks and waits for their checkpoints. What a command leaves behind that does not hand it on is
    sent it then. Over when all has ended, or after `grace_s`, or with `hasten()`.
    """
    began_s = time.monotonic()
    woken = False
    if launch.pid and launch.poll() is None:
        launch.signal(number, [launch.pid])
    asked: set[int] = {launch.pid}
    while left := launch.descendants():
        waited_s = time.monotonic() - began_s
        if hasten() or waited_s > grace_s:
            return
        if waited_s > WAKE_AFTER_S and not woken:
            # Who is stopped acts on the signal when it wakes, if it has come by then.
            launch.signal(signal.SIGCONT, left)
            woken = True
        if launch.poll() is not None:
            late = [pid for pid in left if pid not in asked]
            launch.signal(number, late)
            asked.update(late)
        time.sleep(POLL_EVERY_S)
    launch.poll()


def end_tree(
    launch: Launch,
    grace_s: float,
    silence_launcher: bool = False,
    spared: Collection[int] = (),
) -> tuple[int, ...]:
    """SIGCONT and SIGTERM to every process of the run, SIGKILL to what is left after `grace_s`,
    until nothing is left. Takes at most `grace_s` + `GONE_WITHIN_S`, and hardly longer than the
    processes need.

    `silence_launcher` kills the command itself first. torchrun otherwise takes a second to end
    and prints tracebacks about the ranks it lost; a launcher with ranks on other hosts has to be
    asked, so that it ends those too. `spared` are processes that nothing is done to. Returns those
    that had to be SIGKILLed.
    """

    def descendants() -> list[int]:
        return [pid for pid in launch.descendants() if pid not in spared]

    began_s = time.monotonic()
    killed: dict[int, None] = {}
    if silence_launcher and launch.pid and launch.poll() is None:
        killed.update(dict.fromkeys(launch.signal(signal.SIGKILL, [launch.pid])))
        launch.wait(GONE_WITHIN_S)  # its ranks are the warden's from here on
    left = descendants()
    if grace_s > 0:
        # A stopped process gets the polite signal first, so that it acts on it when it wakes.
        launch.signal(signal.SIGTERM, left)
        launch.signal(signal.SIGCONT, left)
        asked = set(left)
        while left and time.monotonic() - began_s < grace_s:
            time.sleep(POLL_EVERY_S)
            launch.poll()
            left = descendants()
            # Started meanwhile: a launcher that restarts its workers, a shell's next command.
            late = [pid for pid in left if pid not in asked]
            launch.signal(signal.SIGTERM, late)
            asked.update(late)
    kill_until_s = time.monotonic() + GONE_WITHIN_S
    while left:
        killed.update(dict.fromkeys(launch.signal(signal.SIGKILL, left)))
        launch.poll()
        if time.monotonic() > kill_until_s:
            break
        time.sleep(POLL_EVERY_S / 3)
        left = descendants()
    if launch.pid:
        launch.wait(timeout_s=0 if left else 0.5)
    return tuple(killed)


def can_raise(rank: Rank) -> bool:
    """Whether the rank is alive and its Python still runs."""
    silent_s = (steady_clock.now_ns() - rank.heartbeat_ns) / 1e9
    return rank.process.alive and rank.process.state not in ("T", "t") and silent_s < SILENT_S
