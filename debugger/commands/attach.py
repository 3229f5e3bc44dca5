"""`distdebug attach`: the prompt of a rank at a breakpoint, with line editing and history."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..record.breakpoints import Line, Stop, connect, stops
from ..record.run_directory import RunDirectory
from ..record.sanitize import clean
from .base import Command, add_run_argument

HISTORY = "~/.distdebug_history"
_MOST_HISTORY = 1000
_HINT_AFTER_S = 1.0
_COMPLETE_S = 2.0
_ASK_AGAIN_S = 0.01
_SPOKE = signal.SIGUSR1


class AttachCommand(Command):
    name = "attach"
    help = "talk to a rank that stands at a breakpoint"
    epilog = (
        "The prompt is pdb's, in the rank. `continue` lets the rank go on to its next breakpoint;\n"
        "`quit`, Ctrl-D or closing the terminal let it go on without stopping again. While the\n"
        "rank runs, Ctrl-C leaves it to itself in the same way.\n"
        "\n"
        "examples:\n"
        "  distdebug attach --rank 2\n"
        "  distdebug attach .distdebug/20260310-141502-7f3a --rank 2"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        parser.add_argument(
            "--rank",
            type=int,
            metavar="R",
            help="which rank (default: the only one at a breakpoint)",
        )

    def run(self, args: argparse.Namespace) -> int:
        directory = RunDirectory.open(args.run).path
        stop = _chosen(directory, args.rank)
        if stop.address:
            raise UsageError(f"{stop.notice('')}")
        try:
            connection = connect(directory, stop)
        except OSError as error:
            raise UsageError(
                f"{stop.who} cannot be reached: {(error.strerror or str(error)).lower()}; "
                "it may have gone on"
            ) from None
        with contextlib.closing(Line(connection)) as line:
            terminal = Terminal(line, stop, directory)
            with _readline(terminal):
                return terminal.run()


def _chosen(directory: Path, rank: int | None) -> Stop:
    found = stops(directory)
    there = ", ".join(stop.who for stop in found) or "no rank"
    if rank is None:
        if len(found) > 1:
            raise UsageError(f"{there} are at breakpoints; say which with --rank")
        if not found:
            raise UsageError(f"no rank of {directory} is at a breakpoint on this host")
        return found[0]
    for stop in found:
        if stop.rank == rank:
            return stop
    verb = "are" if len(found) > 1 else "is"
    raise UsageError(f"rank {rank} is not at a breakpoint of {directory}; {there} {verb}")


class Terminal:
    """Shows what the rank says, and asks when it wants a line."""

    def __init__(self, line: Line, stop: Stop, directory: Path) -> None:
        self._line = line
        self._stop = stop
        self._directory = directory
        self._others: set[str] = set()
        self._typing = False
        self._asking = False

    def run(self) -> int:
        """Until the rank has gone on, or the user has left."""
        signal.signal(_SPOKE, self._on_spoke)
        print(
            f"{self._stop.who} at {clean(self._stop.place)}; "
            "continue goes on to the next breakpoint, quit leaves the rank to itself"
        )
        hinted = False
        while True:
            try:
                if not select.select([self._line], [], [], _HINT_AFTER_S)[0]:
                    if not hinted:
                        print(f"{self._stop.who} runs; Ctrl-C leaves it to itself", flush=True)
                    hinted = True
                    self._tell_of_others()
                    continue
                messages = self._line.receive()
            except KeyboardInterrupt:
                print(f"\nleft {self._stop.who}, which stops at no further breakpoint")
                return 0
            if messages is None:
                print(f"{self._stop.who} has ended; `distdebug report` says how the run did")
                return 0
            for message in messages:
                match message:
                    case {"output": str(text)}:
                        _show(text)
                    case {"prompt": str(prompt)}:
                        hinted = False
                        self._ask(prompt)
                    case {"end": str(text)}:
                        print(clean(text))
                        return 0
                    case _:
                        pass  # candidates that came too late

    def _tell_of_others(self) -> None:
        """This rank may wait for another one that stands at a breakpoint; told once of each."""
        for stop in stops(self._directory):
            if stop.pid != self._stop.pid and stop.name not in self._others:
                self._others.add(stop.name)
                print(stop.notice(str(self._directory)), flush=True)

    def _ask(self, prompt: str) -> None:
        """Send what is typed."""
        *before, last = prompt.split("\n")
        _show("".join(f"{line}\n" for line in before))
        while True:
            try:
                with self._watched():
                    typed = input(clean(last))
                self._line.send(line=typed)
            except _Spoke:
                print()
            except KeyboardInterrupt:
                print()  # as in a shell: only the line is given up
                continue
            except EOFError:
                print()
                self._line.send(line="quit")
            return

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """While the user types, break that off when the rank has something to say: that it ends."""
        ours, theirs = socket.socketpair()
        both: list[Any] = [self._line, theirs]

        def watch() -> None:
            while theirs not in (ready := select.select(both, [], [])[0]):
                if ready and not self._asking:
                    signal.pthread_kill(threading.main_thread().ident or 0, _SPOKE)
                    return
                time.sleep(_ASK_AGAIN_S)

        watcher = threading.Thread(target=watch, daemon=True)
        self._typing = True
        watcher.start()
        try:
            yield
        finally:
            self._typing = False
            ours.close()
            watcher.join()
            theirs.close()

    def _on_spoke(self, _number: int, _frame: object) -> None:
        if self._typing:
            self._typing = False
            raise _Spoke

    def candidates(self, text: str, line: str, begin: int, end: int) -> list[str]:
        """Ask the rank what the word at `line[begin:end]` may become."""
        self._asking = True
        try:
            self._line.send(complete=[text, line, begin, end])
            until_s = time.monotonic() + _COMPLETE_S
            while (left_s := until_s - time.monotonic()) > 0:
                if not select.select([self._line], [], [], left_s)[0]:
                    break
                for message in self._line.receive() or ({"candidates": ()},):
                    if "candidates" in message:
                        return [clean(str(one)) for one in message["candidates"]]
            return []
        finally:
            self._asking = False


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
    """As readline wants it: asked for one candidate after the other."""

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
