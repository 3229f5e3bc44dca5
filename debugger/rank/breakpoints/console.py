"""The file behind a rank's prompt: a socket that `distdebug attach` has connected to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from ...record.limits import LOOK_EVERY_S
from ...record.requests.breakpoints import TAKEN, Line, same_user
from ...record.streams import readable


class Console:
    """The file that pdb reads and writes. What is written before somebody comes waits for them.

    `look()` is called between waits, and raises when the rank must not stand here any longer.
    """

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._listener: socket.socket | None = None
        self._line: Line | None = None
        self._lines: list[str] = []
        self._written = ""
        self.left = False
        """Whether whoever was at the prompt has left: reading gives an end."""
        self._once = False
        self.going = False
        """The last prompt ended with `continue`."""
        self.complete: Callable[[str, str, int, int], list[str]] = lambda *_: []

    def open(self, listener: socket.socket) -> None:
        """Lets terminals come."""
        self._listener = listener

    def shut(self) -> None:
        """No more may come; who is there stays."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def end(self, text: str) -> None:
        """Tell who is there that the prompt is over, and why."""
        self.flush()
        if self._line is not None:
            self._line.send(end=text)
            self._line.close()
            self._line = None

    def go(self, text: str) -> None:
        """The rank goes on to its next breakpoint: tell a terminal that came for this one alone."""
        if self._once:
            self.end(text)

    # -- what pdb calls ------------------------------------------------------------------------

    def write(self, text: str) -> int:
        self._written += text
        if len(self._written) > 1 << 16:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Pass on the whole lines; what comes behind the last may be a prompt."""
        if self._line is not None:
            whole, newline, rest = self._written.rpartition("\n")
            if newline and not self._send(output=whole + newline):
                return
            self._written = rest

    def isatty(self) -> bool:
        return False

    def readline(self, _limit: int = -1) -> str:
        """Returns the line that is typed; "" when whoever typed has left."""
        while not self.left:
            if self._line is None:
                self._look()
                if self._listener is not None and readable([self._listener], LOOK_EVERY_S):
                    came = self._accept(self._listener)
                    if came is not None:
                        self._line, self._once = Line(came), False
                continue
            self.flush()
            if self._lines:
                return self._lines.pop(0)
            prompt, self._written = self._written, ""
            if self._send(prompt=prompt):
                self._await_line(self._line)
        return ""

    # -- the other end -------------------------------------------------------------------------

    def _send(self, **message: Any) -> bool:
        if self._line is None or not self._line.send(**message):
            self._lost()
            return False
        return True

    def _lost(self) -> None:
        self.left = True
        if self._line is not None:
            self._line.close()
            self._line = None

    def _accept(self, listener: socket.socket) -> socket.socket | None:
        connection, _ = listener.accept()
        if same_user(connection):
            return connection
        connection.close()
        return None

    def _await_line(self, line: Line) -> None:
        while not self._lines and not self.left:
            self._look()
            both: list[Any] = [line, self._listener] if self._listener is not None else [line]
            ready = readable(both, LOOK_EVERY_S)
            if self._listener in ready and self._listener is not None:
                further = self._accept(self._listener)
                if further is not None:
                    Line(further).send(end=TAKEN)
                    further.close()
            if line in ready:
                self._take(line.receive())

    def _take(self, messages: list[dict[str, Any]] | None) -> None:
        if messages is None:
            self._lost()
        for message in messages or ():
            match message:
                case {"line": str(text)}:
                    self._lines.append(text + "\n")
                case {"once": True}:
                    self._once = True
                case {"complete": [str(text), str(whole), int(begin), int(end)]}:
                    self._send(candidates=self.complete(text, whole, begin, end)[:500])
                case _:
                    self._lost()
