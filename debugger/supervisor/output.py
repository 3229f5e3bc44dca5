"""Shows what the ranks print: follows their log files and prints whole lines with the rank's name.

Each rank's stdout and stderr go to files of their own (`logs/<rank>.out`, `.err`), so nothing is
lost when the terminal is slow, and the lines of two ranks never mix.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ..record.log_file import DEFAULT_MAX_MB, in_bytes
from ..record.sanitize import clean_line, shown_of
from .output_log import OutputLog

LOOK_EVERY_S = 0.05
IDLE_S = 0.5
"""An unfinished line is shown when nothing was added to it for this long."""
REFRESH_S = 1.0
"""How often an unfinished progress bar (a line with carriage returns) is shown on a terminal."""
READ_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 23
"""A longer line is broken; shorter ones are shown whole: what the program prints may be parsed."""
_UNCUT = 16 * MAX_LINE_BYTES
_LOG = re.compile(r"(0|[1-9]\d{0,8})\.(out|err)")
_COLOURS = (36, 33, 35, 32, 34, 91, 92, 93, 94, 95, 96)


def colour_wanted(stream: TextIO, environment: Mapping[str, str] | None = None) -> bool:
    """Whether to colour what is written to `stream`: a terminal, without NO_COLOR."""
    environment = os.environ if environment is None else environment
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:
        return False


class _Screen:
    """One stream of ours: knows which rank's unfinished line the cursor stands in."""

    def __init__(self, stream: TextIO, colour: bool) -> None:
        self.stream = stream
        self.colour = colour
        self.terminal = _is_terminal(stream)
        self.owner: _Follower | None = None
        self.broken = False

    def write(self, text: str) -> None:
        if self.broken:
            return
        try:
            encoding = getattr(self.stream, "encoding", None) or "utf-8"
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self.stream.flush()
        except (OSError, ValueError):
            self.broken = True  # `| head`, or a closed terminal: the run goes on, the files stay


@dataclass(slots=True)
class _Follower:
    """One log file: how far it was read, and the line that has no end yet."""

    path: Path
    prefix: str
    screen: _Screen
    log: OutputLog
    offset: int = 0
    pending: bytes = b""
    shown: int = 0
    changed_s: float = 0.0
    shown_s: float = 0.0
    behind: bool = False
    """Whether there is more to read at once."""

    def read(self, now_s: float) -> bool:
        """Prints the lines that were completed; False when the file has nothing new."""
        try:
            size = os.stat(self.path).st_size
            if size < self.offset:
                self.offset = 0  # somebody emptied it
            if size == self.offset:
                self.behind = False
                return False
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self.offset)
                received = file.read(READ_BYTES)
        except OSError:
            self.behind = False
            return False
        if not received:
            return False
        self.offset += len(received)
        self.behind = self.offset < size
        self.changed_s = now_s
        *lines, last = (self.pending + received).split(b"\n")
        self.log.took(self.offset, lines, time.time_ns())
        texts = []
        for line in lines:
            texts.append(self._finish(line))
            self.shown = 0
        self.pending = last
        if len(last) - self.shown > MAX_LINE_BYTES:
            texts.append(self._finish(last))
            self.pending, self.shown = b"", 0
        if texts:
            self.screen.write("".join(texts))
        return True

    def show_pending(self, now_s: float, final: bool = False) -> None:
        """Prints the unfinished line when it rests, or now and then when it is a progress bar."""
        if len(self.pending) <= self.shown:
            return
        resting = now_s - self.changed_s >= IDLE_S
        bar = b"\r" in self.pending and self.screen.terminal
        if not (final or resting or (bar and now_s - self.shown_s >= REFRESH_S)):
            return
        state = shown_of(self.pending)
        self.shown, self.shown_s = len(self.pending), now_s
        if state:
            self.screen.write(self._begin() + self._line(state))
            self.screen.owner = self

    def _finish(self, line: bytes) -> str:
        """The text that completes `line`, of which `shown` bytes stand on the screen already."""
        rest = line[self.shown :]
        if self.screen.owner is self and b"\r" not in rest.rstrip(b"\r"):
            self.screen.owner = None
            shown_as = clean_line(_decode(rest.rstrip(b"\r")), _UNCUT, colour=self.screen.colour)
            return f"{shown_as}\n"
        state = shown_of(rest) if self.shown else shown_of(line)
        if self.shown and not state:
            return ""
        return f"{self._begin()}{self._line(state)}\n"

    def _begin(self) -> str:
        """Brings the cursor to the start of a line; an own progress bar is written over."""
        owner, self.screen.owner = self.screen.owner, None
        if owner is None:
            return ""
        if owner is self and self.screen.terminal and b"\r" in self.pending:
            return "\r\x1b[K"
        return "\n"

    def _line(self, text: str) -> str:
        return self.prefix + clean_line(text, _UNCUT, colour=self.screen.colour)


class OutputFollower:
    """Follows the logs of all ranks. Either call `poll` about 20 times a second, or `start` a
    thread, so that a terminal that does not take more output cannot hold up the supervisor.
    `colour`: colours may be used, where the streams are terminals that want them."""

    def __init__(
        self,
        logs: Path,
        stdout: TextIO,
        stderr: TextIO,
        log_max_mb: float = DEFAULT_MAX_MB,
        *,
        colour: bool = True,
    ) -> None:
        self._logs = logs
        self._log_bytes = in_bytes(log_max_mb)
        self._screens = {
            "out": _Screen(stdout, colour and colour_wanted(stdout)),
            "err": _Screen(stderr, colour and colour_wanted(stderr)),
        }
        if _same_file(stdout, stderr):
            # One terminal has one cursor.
            self._screens["err"] = self._screens["out"]
        self._followers: dict[str, _Follower] = {}
        self._listed_ns = -1
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._moved_s = time.monotonic()
        self._abandoned = False

    def poll(self) -> bool:
        """Prints what is new; False when there was nothing."""
        self._discover()
        now_s = time.monotonic()
        busy = False
        for follower in self._followers.values():
            busy |= follower.read(now_s)
            follower.show_pending(now_s)
        return busy

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="distdebug-output", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float = 60.0, stalled_s: float = 2.0) -> None:
        """Prints everything that is left, unfinished lines too. Call it when the ranks are gone.

        Gives up after `timeout_s`, or when the terminal takes nothing for `stalled_s`; what was
        not shown is still in the files.
        """
        self._listed_ns = -1
        self._stopping.set()
        if self._thread is not None:
            deadline = time.monotonic() + timeout_s
            while self._thread.is_alive():
                self._thread.join(LOOK_EVERY_S)
                now_s = time.monotonic()
                if now_s > deadline or now_s - self._moved_s > stalled_s:
                    self._abandoned = True
                    return
        else:
            self._run()
        for follower in self._followers.values():
            follower.show_pending(time.monotonic(), final=True)
        for screen in set(self._screens.values()):
            if screen.owner is not None:
                screen.write("\n")
                screen.owner = None

    def _run(self) -> None:
        """Until told to stop, and then until nothing is left."""
        while not self._abandoned:
            stopping = self._stopping.is_set()
            busy = self.poll()
            self._moved_s = time.monotonic()
            if stopping and not busy:
                return
            # Ranks may print faster than one chunk a look: catch up at once.
            if not any(follower.behind for follower in self._followers.values()):
                self._stopping.wait(LOOK_EVERY_S)

    def _discover(self) -> None:
        """Finds new log files; lists the directory only when it has changed."""
        try:
            changed_ns = os.stat(self._logs).st_mtime_ns
            if changed_ns == self._listed_ns:
                return
            names = os.listdir(self._logs)
        except OSError:
            return
        # A change within the clock's grain of the listing would be missed: look again then.
        recent = time.time_ns() - changed_ns < 50_000_000
        self._listed_ns = -1 if recent else changed_ns
        found = [match for name in names if (match := _LOG.fullmatch(name))]
        for match in sorted(found, key=lambda one: (int(one[1]), one[2] != "out")):
            if match[0] not in self._followers:
                screen = self._screens[match[2]]
                path, rank = self._logs / match[0], int(match[1])
                self._followers[match[0]] = _Follower(
                    path,
                    _prefix(rank, screen.colour),
                    screen,
                    OutputLog(path, rank, self._log_bytes),
                )


def _prefix(rank: int, colour: bool) -> str:
    if not colour:
        return f"[rank {rank}] "
    return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m[rank {rank}]\x1b[0m "


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def _same_file(one: TextIO, other: TextIO) -> bool:
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError):
        return one is other
