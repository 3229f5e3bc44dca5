"""Folds the tracebacks that many ranks print alike as a run is ended: one in full, then who else
has printed it. All others, and every other line, are shown as they come."""

from __future__ import annotations

import os

from ...record.wording import FINDING_MARK, comparable, ranks_text

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


class Folds:
    """The tracebacks that were shown on one screen, by the rank that was the first."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._whole: dict[str, tuple[int, list[bytes]]] = {}
        """By the error, the last line: the one that was shown in full."""
        self._again: dict[int, set[int]] = {}
        self.ranks: set[int] = set()
        """The ranks whose traceback was left out, and not mentioned yet."""

    def folded(self, rank: int, lines: list[bytes]) -> list[bytes]:
        """Returns what is to be shown of a traceback: none of it, where another rank's was the
        same; where its error was, the lines that differ."""
        lines = [line.rstrip(b"\r") for line in lines]
        key, error = (
            comparable(text.decode("utf-8", "replace")) for text in (b"\n".join(lines), lines[-1])
        )
        first = self._first.setdefault(key, rank)
        if first != rank:
            self._again.setdefault(first, set()).add(rank)
            self.ranks.add(rank)
            return []
        other, known = self._whole.setdefault(error, (rank, lines))
        alike = len(os.path.commonprefix([known, lines]))  # noqa: RUF071 - of lists
        if other == rank or alike < 2:
            return lines
        return [b"Traceback as that of rank %d, but for:" % other, *lines[alike:-1]]

    def told(self) -> str:
        """The lines that mention those that were left out."""
        rows, self._again, self.ranks = self._again, {}, set()
        return "".join(
            f"[{ranks_text(ranks)}] the same traceback as that of rank {first}\n"
            for first, ranks in rows.items()
        )
