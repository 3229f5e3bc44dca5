"""The process that takes what the ranks print from their pipes and terminals, keeps and shows it:
the bytes, when each part came, and torch's messages as records. (The rank cannot tell the last:
such messages go past Python, and the gravest come from one that is about to be aborted, or whose
GIL is held.)

A process of its own, so that the ranks' output goes on while the supervisor is stopped, and when it
is dead: it ends when no rank is left that could print. Its standard streams are the supervisor's.
Each rank makes its pipes (or a pseudo-terminal where the run has a terminal) and sends the ends to
read from over `output.sock`. Standard library only.

Over descriptor 0 come packets of JSON from the supervisor: first {"logs", "most_bytes", "colour",
"defuse", "encodings", "show", "listener", "next", "sources"}, later {"show": bool},
{"finish": true}, and at the end {"close": true}: without that it was killed, and what is left of
the run is ended. It is told {"source": number, "name"} with the descriptor of each source, so that
it can start another drain if this one is killed and no rank gets an EPIPE; {"ended": number};
{"lost": sentence}; and, when asked to finish, {"moved": count} as long as something moves, and
{"finished": true}.

Every run starts one, so it imports little: without `dataclasses` and `typing`, neither here nor in
what it uses, it is at work after two thirds of the time.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import io
import itertools
import json
import os
import re
import resource
import select
import signal
import socket
import sys
import termios
import threading
import time
from pathlib import Path

from ...record import log_file
from ...record.limits import LOOK_EVERY_S, POLL_EVERY_S
from ...record.log_file import RECORDS, TIMES_ENTRY, times_path
from ...record.safe_files import append, open_to_append, user_of
from ...record.streams import patient
from ...system.processes import started_with
from ..limits import RETRY_S, TIMES_EVERY_S
from .lines import Display

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "output.sock"
BOTH = "both"
"""The name of a stream that is a rank's stdout and stderr, as both go to one place."""
PACKET_BYTES = 1 << 17
_HELLO = re.compile(rb"(0|[1-9]\d{0,8}) (out|err|both)")
_IGNORED = (
    *("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGPIPE"),
    *("SIGUSR1", "SIGUSR2"),  # of a scheduler's, which every process of a job may be sent
)
_READ_BYTES = 1 << 16
_MOST_WAITING_BYTES = 32 << 20
"""The most that the terminal may not have taken yet. Beyond it the ranks wait, as they would
without us."""


_Source = collections.namedtuple("_Source", "number descriptor rank stream log")
"""A pipe or terminal of a rank."""


class Backlog:
    """The output that is still to be shown, in order, by a thread of its own: a terminal may take
    nothing."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._parts: collections.deque[tuple[int, str, bytes]] = collections.deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._busy = False
        self.moved = 0
        threading.Thread(target=self._run, name="distdebug-display", daemon=True).start()

    def put(self, rank: int, stream: str, data: bytes) -> None:
        """Waits while there is too much."""
        with self._changed:
            while self._bytes > _MOST_WAITING_BYTES:
                self._changed.wait()
            self._parts.append((rank, stream, data))
            self._bytes += len(data)
            self._changed.notify_all()

    @property
    def idle(self) -> bool:
        with self._changed:
            return not (self._parts or self._busy)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._parts:
                    self._changed.wait(POLL_EVERY_S)
                part = self._parts.popleft() if self._parts else None
                self._busy = True
            if part is None:
                self._display.poll()
            else:
                self._display.take(*part)
            with self._changed:
                self._busy = False
                if part is not None:
                    self._bytes -= len(part[2])
                self.moved += 1
                self._changed.notify_all()


class Drain:
    """The loop of that process."""

    def __init__(self, control: socket.socket, request: dict[str, Any], display: Display) -> None:
        self._control = control
        self._listener = socket.socket(fileno=int(request["listener"]))
        self._listener.setblocking(False)
        self._logs = Path(request["logs"])
        self._most_bytes = int(request["most_bytes"])
        self._display = display
        self._backlog = Backlog(display)
        self._sources: dict[int, _Source] = {}
        self._open_logs: dict[tuple[int, str], OutputLog] = {}
        self._numbers = itertools.count(int(request["next"]))
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._listener, select.POLLIN)
        self._supervised = True
        self._finishing = False
        self._dismissed = False
        self._told_lost: set[str] = set()
        self._sweep_at_s: float | None = None
        self._size, self._size_at_s = terminal_size(), 0.0
        for number, descriptor, name in request["sources"]:
            self._add(int(number), int(descriptor), str(name))

    def run(self) -> None:
        """Drains until the supervisor is gone, and nobody is left who could print."""
        while self._supervised or self._sources or self._sweep_at_s is not None:
            timeout_s = 0.0 if self._finishing else POLL_EVERY_S
            events = self._poll.poll(1000 * timeout_s)
            quiet = True
            for descriptor, _event in events:
                if descriptor == self._control.fileno():
                    self._listen()
                    continue
                quiet = False
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._sources:
                    self._read(self._sources[descriptor])
            self._sweep()
            self._follow_size()
            if quiet:
                for log in self._open_logs.values():
                    log.note_time()
                if self._finishing:
                    self._finish()
        while not self._backlog.idle:
            select.select([], [], [], POLL_EVERY_S)
        self._display.finish()

    # -- the ranks -----------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(1.0)
                if user_of(connection) not in (os.geteuid(), 0):
                    return
                hello, descriptors, _, _ = socket.recv_fds(connection, 64, 1)
                if len(descriptors) == 1 and _HELLO.fullmatch(hello):
                    number = next(self._numbers)
                    name = hello.decode()
                    self._tell({"source": number, "name": name}, descriptors)
                    self._add(number, descriptors[0], name)
                else:
                    for descriptor in descriptors:
                        os.close(descriptor)

    def _add(self, number: int, descriptor: int, name: str) -> None:
        rank, _, kind = name.partition(" ")
        stream = "out" if kind == BOTH else kind
        key = int(rank), stream
        log = self._open_logs.get(key)
        if log is None:
            path = self._logs / f"{int(rank)}.{stream}"
            log = OutputLog(path, int(rank), self._most_bytes, cpp=kind != "out")
            self._open_logs[key] = log
        os.set_blocking(descriptor, False)
        self._resize(descriptor)
        self._sources[descriptor] = _Source(number, descriptor, int(rank), stream, log)
        self._poll.register(descriptor, select.POLLIN)

    def _read(self, source: _Source) -> None:
        try:
            data = os.read(source.descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EINTR:
                return
            data = b""  # EIO: nobody has the terminal open any more
        if not data:
            self._poll.unregister(source.descriptor)
            os.close(source.descriptor)
            del self._sources[source.descriptor]
            source.log.note_time()
            self._tell({"ended": source.number})
            return
        source.log.take(data)
        if source.log.failure and source.log.failure not in self._told_lost:
            self._told_lost.add(source.log.failure)
            self._tell({"lost": source.log.failure})
        self._backlog.put(source.rank, source.stream, data)

    # -- the supervisor ------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            packet = self._control.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            if self._supervised and not self._dismissed:
                self._sweep_at_s = time.monotonic() + 1.0  # its warden has ended the run by then
            self._supervised = False
            self._display.show(True)
            self._poll.unregister(self._control)
            return
        order = json.loads(packet)
        self._dismissed = self._dismissed or bool(order.get("close"))
        if "show" in order:
            self._display.show(bool(order["show"]))
        self._finishing = self._finishing or bool(order.get("finish"))

    def _sweep(self) -> None:
        """The supervisor was killed. Its warden ends the run, if it was not killed with it; who is
        left then is ended from here, until nobody is."""
        if self._sweep_at_s is None or time.monotonic() < self._sweep_at_s:
            return
        left = started_with("DISTDEBUG_RUN_DIR", str(self._logs.parent))
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._sweep_at_s = time.monotonic() + LOOK_EVERY_S if left else None

    def _follow_size(self) -> None:
        """The ranks' terminals are as large as the real one, also when that is resized. Nobody is
        sent SIGWINCH, as no rank of torchrun's is: each has a session of its own."""
        now_s = time.monotonic()
        if now_s - self._size_at_s < LOOK_EVERY_S:
            return
        self._size_at_s = now_s
        size = terminal_size()
        if size is None or size == self._size:  # None: it has gone
            return
        self._size = size
        for descriptor in self._sources:
            self._resize(descriptor)

    def _resize(self, descriptor: int) -> None:
        if self._size is not None:
            with contextlib.suppress(OSError):  # it is a pipe
                fcntl.ioctl(descriptor, termios.TIOCSWINSZ, self._size)

    def _finish(self) -> None:
        """Nothing is left to read; and to show?"""
        if not self._backlog.idle:
            self._tell({"moved": self._backlog.moved})
            select.select([], [], [], POLL_EVERY_S)
            return
        self._display.finish()
        self._finishing = False
        self._tell({"finished": True})

    def _tell(self, value: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """A supervisor that is stopped, or gone, is sent nothing; nobody waits for it."""
        if self._supervised:
            with contextlib.suppress(OSError):
                socket.send_fds(self._control, [json.dumps(value).encode()], descriptors or [])


def terminal_size() -> bytes | None:
    """Returns the size of the terminal to which one of our streams leads, as the kernel has it."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            return bytes(fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
    return None


def main() -> None:
    """The process."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    control = socket.socket(fileno=0)
    request = json.loads(control.recv(PACKET_BYTES))
    control.setblocking(False)
    streams: list[Any] = []
    for stream, encoding in zip((sys.stdout, sys.stderr), request["encodings"], strict=True):
        assert isinstance(stream, io.TextIOWrapper)
        streams.append(patient(stream, encoding))
    if request["defuse"]:  # a CI system takes commands from what a rank prints
        from ...record.safe_text import Defused

        streams = [Defused(stream) for stream in streams]
    display = Display(*streams, colour=bool(request["colour"]))
    display.show(bool(request["show"]))
    Drain(control, request, display).run()


_MOST_MESSAGE_BYTES = 1 << 14


class OutputLog:
    """A `<rank>.out` or `<rank>.err`: it keeps the end of all that came, at most `most_bytes` in
    two files. `cpp`: torch's C++ code prints there. A full disk costs the log, not the run: then
    `failure` says why, `lost_bytes` how much is missing, and it is tried again after a while."""

    def __init__(self, path: Path, rank: int, most_bytes: int, cpp: bool) -> None:
        self._path = path
        self._times = times_path(path)
        self._records = path.with_suffix(f".{RECORDS}")
        self._rank = rank
        self._most_bytes = most_bytes
        self._cpp = cpp
        self._rest = b""
        self._size = 0
        self._untold: int | None = None
        self._timed_s = 0.0
        self._retry_s = 0.0
        self.failure = ""
        self.lost_bytes = 0

    def take(self, data: bytes) -> None:
        """The rank has printed this."""
        now_s = time.monotonic()
        if now_s < self._retry_s:
            self.lost_bytes += len(data)
        else:
            try:
                self._write(data)
            except OSError as error:
                self.failure = error.strerror or str(error)
                self.lost_bytes += len(data)
                self._retry_s = now_s + RETRY_S
            else:
                self._untold = self._size
                if now_s - self._timed_s >= TIMES_EVERY_S:
                    self.note_time()
        if self._cpp:
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest[-_MOST_MESSAGE_BYTES:]
            for line in lines:
                if line.startswith(b"[") or b"\r[" in line:
                    self._record(line)

    def note_time(self) -> None:
        """All that was taken so far had come by now. Call it when nothing comes, too."""
        if self._untold is None:
            return
        with contextlib.suppress(OSError):
            append(self._times, TIMES_ENTRY.pack(self._untold, time.time_ns()))
        self._untold, self._timed_s = None, time.monotonic()

    def _write(self, data: bytes) -> None:
        descriptor = open_to_append(self._path)
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(data) > self._most_bytes // 2:
                self.note_time()
                os.close(descriptor)
                descriptor = -1
                older = log_file.older(self._path)
                os.replace(self._path, older)
                with contextlib.suppress(OSError):
                    os.replace(self._times, times_path(older))
                descriptor, size = open_to_append(self._path), 0
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            self._size = size + len(data)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _record(self, line: bytes) -> None:
        now_ns = time.time_ns()
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")
        message = log_file.parse_glog(text[:_MOST_MESSAGE_BYTES], now_ns)
        if message is None:
            return
        identity = {"rank": self._rank, "host": socket.gethostname()}
        record = {"time_ns": message.pop("time_ns"), **identity, **message, "printed": True}
        with contextlib.suppress(OSError):
            raw = json.dumps(record, separators=(",", ":")).encode() + b"\n"
            log_file.append(self._records, raw, self._most_bytes)
