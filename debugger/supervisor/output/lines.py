"""Shows what the ranks print: whole lines, each with its rank's name, and harmless.

The lines of two ranks never mix; an unfinished one, such as a progress bar, is shown when it rests.
The traceback by which a verdict ends a rank is one line; of those of Ctrl-C that many ranks print
alike one is shown in full, then who else has printed it. All others, and every other line, are
shown as they come.
"""

from __future__ import annotations

import os
import re
import time

from ...record.safe_text import clean_line, shown_of
from ...record.wording import FINDING_MARK, comparable, ranks_text
from ..limits import IDLE_S, REFRESH_S


class QuietLooks:
    """Looks are counted, and no time: on a crowded machine this process may be given no core for
    seconds, in which the other has gone on and nobody has looked."""

    def __init__(self, every_s: float, limit_s: float, done: int) -> None:
        """A look comes every `every_s`; `limit_s` of them are too many. `done` is how much the
        other has done so far, as a number that grows."""
        self._every_s = every_s
        self._limit_s = limit_s
        self._done = done
        self._quiet = 0

    def too_many(self, done: int, at_work: bool = False) -> bool:
        """Counts one more look. `at_work`: the other is seen to be so, although it has done no
        more."""
        self._quiet = 0 if at_work or done != self._done else self._quiet + 1
        self._done = done
        return self._quiet * self._every_s > self._limit_s


_HEAD = b"Traceback (most recent call last):"
_MOST_LINES = 1000


class Traceback:
    """The traceback that a rank is printing on one stream, which is held back until it is whole."""

    def __init__(self, rank: int) -> None:
        self._prefix = b"[rank%d]: " % rank
        """The prefix that torch's excepthook puts before each line but empty ones, as the display
        does."""
        self._by_torch = False
        self._held: list[bytes] = []

    def take(self, line: bytes) -> tuple[list[bytes], bool]:
        """The lines that are to be shown now, without torch's prefix; whether they are a whole
        traceback by which distdebug, or Ctrl-C, ends a rank."""
        body = line.rstrip(b"\r")
        rest = body[len(self._prefix) :]
        if body.startswith(self._prefix) and (self._by_torch or rest == _HEAD):
            self._by_torch, line, body = True, rest, rest
        elif body:
            self._by_torch = False
        if not self._held and body != _HEAD:
            return [line], False
        self._held.append(line)
        inside = body == _HEAD or body[:1] in (b" ", b"")
        if inside and len(self._held) < _MOST_LINES:
            return [], False
        ends = body == b"KeyboardInterrupt" or f": {FINDING_MARK}".encode() in body
        return self.release(), ends

    def release(self) -> list[bytes]:
        """Returns the lines that were held back."""
        lines, self._held = self._held, []
        return lines


_ERROR = re.compile(rf"(?:\w+\.)*(\w+): {re.escape(FINDING_MARK)}(\w+): ")
_PLACE = re.compile(r'  File "(.+)", line (\d+), in (.+)')
_OWN_FAULT = "tool_error"


def _raised(lines: list[str]) -> str:
    """Returns the line that stands for the traceback of a verdict, `raised MismatchError at
    train.py:24 in step`; "" for any other, and for a fault of our own, which is shown whole."""
    error = _ERROR.match(lines[-1])
    places = [place for line in lines if (place := _PLACE.fullmatch(line))]
    if error is None or error[2] == _OWN_FAULT or not places:
        return ""
    file, number, function = places[-1].groups()
    return f"raised {error[1]} at {os.path.basename(file)}:{number} in {function}"


class Folds:
    """The tracebacks that were shown on one screen, by the rank that was the first."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._again: dict[tuple[int, str], set[int]] = {}
        self.ranks: set[int] = set()
        """The ranks whose traceback was left out, and not mentioned yet."""

    def folded(self, rank: int, lines: list[bytes]) -> list[bytes]:
        """Returns what is to be shown of a traceback: of a verdict's one line; of others, as of
        Ctrl-C, all of it. Where another rank's was the same it is mentioned later."""
        lines = [line.rstrip(b"\r") for line in lines]
        texts = [line.decode("utf-8", "replace") for line in lines]
        raised = _raised(texts)
        first = self._first.setdefault(raised or comparable("\n".join(texts)), rank)
        if first == rank:
            return [raised.encode()] if raised else lines
        self._again.setdefault((first, raised), set()).add(rank)
        self.ranks.add(rank)
        return []

    def told(self) -> str:
        """The lines that mention those that were left out."""
        rows, self._again, self.ranks = self._again, {}, set()
        return "".join(
            f"[{ranks_text(ranks)}] {raised or f'the same traceback as that of rank {first}'}\n"
            for (first, raised), ranks in rows.items()
        )


TYPE_CHECKING = False  # see drain.py
if TYPE_CHECKING:
    from typing import TextIO

MAX_LINE_BYTES = 1 << 23
"""A longer line is broken; shorter ones are shown whole: what the program prints may be parsed."""
_UNCUT = 16 * MAX_LINE_BYTES
_COLOURS = (36, 33, 35, 32, 34, 91, 92, 93, 94, 95, 96)


def colour_wanted(stream: TextIO) -> bool:
    """Whether to colour what is written to `stream`: a terminal, without NO_COLOR."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and _is_terminal(stream)


class _Screen:
    """A stream of ours: knows which rank's unfinished line the cursor stands in."""

    def __init__(self, stream: TextIO, colour: bool) -> None:
        self.stream = stream
        self.colour = colour
        self.terminal = _is_terminal(stream)
        self.owner: _Follower | None = None
        self.folds = Folds()
        self.broken = False
        self.shown = True

    def write(self, text: str) -> None:
        if self.broken or not self.shown:
            return
        try:
            encoding = getattr(self.stream, "encoding", None) or "utf-8"
            self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self.stream.flush()
        except (OSError, ValueError):
            self.broken = True  # `| head`, or a closed terminal: the run goes on, the files stay


class _Follower:
    """A stream of a rank, and its line that has no end yet."""

    __slots__ = ("changed_s", "held", "pending", "prefix", "rank", "screen", "shown", "shown_s")

    def __init__(self, rank: int, screen: _Screen) -> None:
        self.rank = rank
        self.prefix = f"[rank {rank}] "
        if screen.colour:
            self.prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m[rank {rank}]\x1b[0m "
        self.screen = screen
        self.held = Traceback(rank)
        self.pending = b""
        self.shown = 0
        self.changed_s = self.shown_s = 0.0

    def take(self, received: bytes, now_s: float) -> None:
        """Prints the lines that this completes."""
        self.changed_s = now_s
        *lines, last = (self.pending + received).split(b"\n")
        texts = []
        for line in lines:
            texts += self._ended(line)
            self.shown = 0
        self.pending = last
        if len(last) - self.shown > MAX_LINE_BYTES:
            texts += [*map(self._finish, self.held.release()), self._finish(last)]
            self.pending, self.shown = b"", 0
        if texts:
            self.screen.write("".join(texts))

    def show_pending(self, now_s: float, final: bool = False) -> None:
        """Prints the unfinished line when it rests, or now and then when it is a progress bar."""
        resting = now_s - self.changed_s >= IDLE_S
        bar = b"\r" in self.pending and self.screen.terminal
        if not (final or resting or (bar and now_s - self.shown_s >= REFRESH_S)):
            return
        if lines := self.held.release():
            self.screen.write("".join(map(self._finish, lines)))
        if self.rank in self.screen.folds.ranks:
            self.screen.write(self._begin() + self.screen.folds.told())
        if len(self.pending) <= self.shown:
            return
        state = shown_of(self.pending)
        self.shown, self.shown_s = len(self.pending), now_s
        if state:
            self.screen.write(self._begin() + self._line(state))
            self.screen.owner = self

    def _ended(self, line: bytes) -> list[str]:
        """Returns what is to be printed of a line that is complete."""
        if self.shown:
            return [self._finish(line)]
        lines, ends_rank = self.held.take(line)
        folds = self.screen.folds
        if ends_rank and self.screen.shown:
            lines = folds.folded(self.rank, lines)
        told = [self._begin() + folds.told()] if lines and self.rank in folds.ranks else []
        return [*told, *map(self._finish, lines)]

    def _finish(self, line: bytes) -> str:
        """The text that completes `line`, of which `shown` bytes stand on the screen already."""
        rest = line[self.shown :]
        if self.screen.owner is self and b"\r" not in rest.rstrip(b"\r"):
            self.screen.owner = None
            text = rest.rstrip(b"\r").decode("utf-8", "backslashreplace")
            shown_as = clean_line(text, _UNCUT, colour=self.screen.colour)
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


class Display:
    """Prints what is taken from the ranks; call `poll` about 20 times a second, too. `colour`:
    colours may be used, where the streams are terminals that want them."""

    def __init__(self, stdout: TextIO, stderr: TextIO, *, colour: bool = True) -> None:
        self._screens = {
            "out": _Screen(stdout, colour and colour_wanted(stdout)),
            "err": _Screen(stderr, colour and colour_wanted(stderr)),
        }
        try:
            one_file = os.path.sameopenfile(stdout.fileno(), stderr.fileno())
        except (OSError, ValueError):
            one_file = stdout is stderr
        if one_file:  # one terminal has one cursor
            self._screens["err"] = self._screens["out"]
        self._followers: dict[tuple[int, str], _Follower] = {}

    def take(self, rank: int, stream: str, received: bytes) -> None:
        """The rank has printed this on `stream`: "out" or "err"."""
        follower = self._followers.get((rank, stream))
        if follower is None:
            screen = self._screens[stream]
            follower = _Follower(rank, screen)
            self._followers[rank, stream] = follower
        now_s = time.monotonic()
        follower.take(received, now_s)
        follower.show_pending(now_s)

    def poll(self) -> None:
        """Prints unfinished lines that rest."""
        now_s = time.monotonic()
        for follower in self._followers.values():
            follower.show_pending(now_s)

    def show(self, shown: bool) -> None:
        """Whether anything is printed from now on: an app may have the terminal."""
        for screen in self._screens.values():
            screen.shown = shown

    def finish(self) -> None:
        """Prints what is left of unfinished lines, and ends the line that the cursor is in."""
        for follower in self._followers.values():
            follower.show_pending(time.monotonic(), final=True)
        for screen in set(self._screens.values()):
            if screen.owner is not None:
                screen.write("\n")
                screen.owner = None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False
