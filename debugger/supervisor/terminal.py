"""A user's end of a rank's prompt: line editing, completion by the rank, history."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..record.requests.breakpoints import Line, Stop, stops
from ..record.safe_text import clean
from ..record.streams import readable

HISTORY = "~/.distdebug_history"
_MOST_HISTORY = 1000
_SPOKE = signal.SIGUSR1
_NUDGE = signal.SIGUSR2
_NUDGES = 50
_LEAVING = frozenset({"q", "quit", "exit"})


def show_prompt(
    connection: socket.socket, stop: Stop, directory: Path, *, once: bool = False
) -> bool:
    """Talk to the rank that stands here, until it has gone on; whether the user left it. `once`:
    not at its further breakpoints."""
    with contextlib.closing(Line(connection)) as line:
        terminal = Terminal(line, stop, directory, once)
        with _readline(terminal):
            terminal.run()
        return terminal.left


class Terminal:
    """Shows what the rank says, and asks when it wants a line."""

    def __init__(self, line: Line, stop: Stop, directory: Path, once: bool = False) -> None:
        self._line = line
        self._once = once
        self._stop = stop
        self._directory = directory
        self._others: set[str] = set()
        self._typing = False
        self._completing = threading.Lock()
        self._unanswered = ""
        self.left = False
        """The user has left the rank to itself."""

    def run(self) -> None:
        """Talks with the rank until it has gone on, or the user has left."""
        kept = signal.signal(_SPOKE, self._on_spoke)
        try:
            self._talk()
        finally:
            signal.signal(_SPOKE, kept)

    def _talk(self) -> None:
        if self._once:
            self._line.send(once=True)
        goes = "lets it go on" if self._once else "goes on to the next breakpoint"
        _show(
            f"{self._stop.who} at {clean(self._stop.place)}; "
            f"continue {goes}, quit leaves the rank to itself\n"
        )
        hinted = False
        while True:
            try:
                if not readable([self._line], timeout_s=1.0):
                    if not hinted:
                        _show(f"{self._stop.who} runs; Ctrl-C leaves it to itself\n")
                    hinted = True
                    # This rank may wait for another one that stands at a breakpoint; told once of
                    # each.
                    for stop in stops(self._directory):
                        if stop.pid != self._stop.pid and stop.name not in self._others:
                            self._others.add(stop.name)
                            _show(f"{stop.notice(str(self._directory))}\n")
                    continue
                messages = self._line.receive()
            except KeyboardInterrupt:
                _show(f"\nleft {self._stop.who}, which stops at no further breakpoint\n")
                self.left = True
                return
            if messages is None:
                _show(f"{self._stop.who} has ended; `distdebug report` says how the run did\n")
                return
            for message in messages:
                match message:
                    case {"output": str(text)}:
                        _show(text)
                    case {"prompt": str(prompt)}:
                        hinted = False
                        self._ask(prompt)
                    case {"end": str(text)}:
                        _show(f"{text}\n")
                        return
                    case {"candidates": _} if self._unanswered:  # they came too late
                        self._ask(self._unanswered)
                    case _:
                        pass

    def _ask(self, prompt: str) -> None:
        """Send what is typed."""
        self._unanswered = prompt
        *before, last = prompt.split("\n")
        _show("".join(f"{line}\n" for line in before))
        while True:
            try:
                with self._watched():
                    typed = input(clean(last))
                self.left = typed.strip() in _LEAVING
                self._answer(typed)
            except _Spoke:
                _show("\n")
            except KeyboardInterrupt:
                _show("\n")  # as in a shell: only the line is given up
                continue
            except EOFError:
                _show("\n")
                self.left = True
                self._answer("quit")
            return

    def _answer(self, typed: str) -> None:
        self._unanswered = ""
        self._line.send(line=typed)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Breaks off what the user types when the rank has something to say: that it ends."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._typing = True
        watcher = threading.Thread(target=self._watch, args=(theirs,), daemon=True)
        with _nudges():
            kept = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
            watcher.start()
            try:
                yield
            finally:
                self._typing = False
                signal.set_wakeup_fd(kept)
                ours.close()
                watcher.join()
                theirs.close()

    def _watch(self, typing: socket.socket) -> None:
        """Watches until the other end is closed; over it come the numbers of the signals that
        Python got.

        Python looks at its signals when readline's wait for a key is interrupted. One that comes
        just before that wait, as Ctrl-C on a prompt that has just been shown, would be seen at the
        next key only: so the wait is interrupted again and again until typing is over, or it is
        clear that somebody else has taken the signal."""
        user = threading.main_thread().ident or 0
        both: list[Any] = [self._line, typing]
        left = 0
        while True:
            if left and not readable([typing], timeout_s=0.01):
                signal.pthread_kill(user, _NUDGE)
                left -= 1
            elif typing in readable(both):
                numbers = typing.recv(64)
                if not numbers:
                    return
                if signal.SIGINT in numbers:
                    left = _NUDGES
            elif self._rank_speaks():
                signal.pthread_kill(user, _SPOKE)
                left = _NUDGES

    def _rank_speaks(self) -> bool:
        """Whether there is something to read but an answer to the other thread's question."""
        with self._completing:
            return bool(readable([self._line], 0))

    def _on_spoke(self, _number: int, _frame: object) -> None:
        if self._typing:
            self._typing = False
            raise _Spoke

    def candidates(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """Ask the rank what the word at `line[begin:end]` may become."""
        with self._completing:
            self._line.send(complete=[text, line, begin, end])
            until_s = time.monotonic() + 2.0
            while (left_s := until_s - time.monotonic()) > 0:
                if not readable([self._line], left_s):
                    break
                for message in self._line.receive() or ({"candidates": ()},):
                    if "candidates" in message:
                        return [clean(str(one)) for one in message["candidates"]]
            return []


@contextlib.contextmanager
def _nudges() -> Iterator[None]:
    """_NUDGE interrupts what the main thread waits for, and does nothing else: a handler in Python
    would be run where Python has an exception to raise already, which it takes for an error."""
    library = ctypes.CDLL(None)
    library.signal.restype = ctypes.c_void_p
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    nothing = ctypes.cast(library.abs, ctypes.c_void_p)
    kept = library.signal(_NUDGE, nothing)
    try:
        yield
    finally:
        library.signal(_NUDGE, kept)


class _Spoke(Exception):
    """The rank has said something while the user typed."""


def _show(text: str) -> None:
    sys.stdout.write(clean(text, max_length=100_000, newlines=True))
    sys.stdout.flush()


@contextlib.contextmanager
def _readline(terminal: Terminal) -> Iterator[None]:
    """Line editing, completion by the rank, and a history that other users cannot read."""
    try:
        import readline
    except ImportError:
        yield  # a Python that was built without it
        return
    if not sys.stdin.isatty():
        yield
        return
    path = os.path.expanduser(HISTORY)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_MOST_HISTORY)
    readline.set_completer_delims(" \t\n`@#$%^&*()=+[{]}\\|;:'\",<>?")
    readline.set_completer(Completer(terminal, readline))
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
            os.chmod(path, 0o600)
            readline.write_history_file(path)


class Completer:
    """The completion as readline wants it: asked for one candidate after the other."""

    def __init__(self, terminal: Terminal, readline: Any) -> None:
        self._terminal = terminal
        self._readline = readline
        self._found: list[str] = []

    def __call__(self, text: str, state: int) -> str | None:
        if state == 0:
            buffer = self._readline.get_line_buffer()
            begin, end = self._readline.get_begidx(), self._readline.get_endidx()
            self._found = self._terminal.candidates(text, buffer, begin, end)
        return self._found[state] if state < len(self._found) else None
