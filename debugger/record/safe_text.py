r"""Makes text that came from a rank harmless before it reaches a terminal, a log or a report.

A rank's text can hold escape sequences that retitle a terminal or hide what stands above,
newlines that forge another rank's line, and invisible or reordering characters. All of them
become visible `\xNN`, `\uNNNN` or `\UNNNNNNNN` escapes; nothing else changes.

A CI system obeys lines as well: GitHub's and Azure's runners, TeamCity. A runner takes commands
from whatever a step prints: `::stop-commands::x` at the start of a line, also behind blanks, and
`##[...]`, `##vso[...]` and `##teamcity[...]` anywhere in one. So a rank's text could mark a step as
failed, hide what follows, or set variables of later steps.
"""

from __future__ import annotations

import re

MAX_LENGTH = 4096
ELLIPSIS = "…"

_C0 = r"\x00-\x08\x0b-\x1f"  # without tab and newline
_DELETE_AND_C1 = r"\x7f-\x9f"
_INVISIBLE = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"
)
_SURROGATES = r"\ud800-\udfff"  # no terminal or file takes them
_UNSAFE = re.compile(f"[\n{_C0}{_DELETE_AND_C1}{_INVISIBLE}{_SURROGATES}]")
_UNSAFE_BUT_NEWLINE = re.compile(f"[{_C0}{_DELETE_AND_C1}{_INVISIBLE}{_SURROGATES}]")
_SGR = re.compile("(\x1b\\[[0-9;:]*m)")
_SGR_RESET = "\x1b[0m"


def clean(text: str, max_length: int = MAX_LENGTH, *, newlines: bool = False) -> str:
    """`text` with every control, bidirectional and zero-width character escaped.

    Tabs stay. Newlines stay only with `newlines`. A line longer than `max_length` characters
    is cut and ends in an ellipsis.
    """
    if newlines:
        return "\n".join(
            _cut(_UNSAFE_BUT_NEWLINE.sub(_escape, line[: max_length + 1]), max_length)
            for line in text.split("\n")
        )
    return _cut(_UNSAFE.sub(_escape, text[: max_length + 1]), max_length)


def clean_line(line: str, max_length: int = MAX_LENGTH, *, colour: bool) -> str:
    """Cleans one line of a program's output. Its SGR sequences (colours, bold) stay with `colour`,
    closed by a reset so that they end with the line, and are left out without."""
    pieces = _SGR.split(line)
    if len(pieces) == 1:
        return clean(line, max_length)
    if not colour:
        return clean("".join(pieces[::2]), max_length)
    kept: list[str] = []
    room = max_length
    for index, piece in enumerate(pieces):
        if index % 2:
            kept.append(piece)
        elif piece:
            kept.append(clean(piece, room))
            room -= len(kept[-1])
            if room <= 0:
                break
    if not kept[-1].endswith(_SGR_RESET):
        kept.append(_SGR_RESET)
    return "".join(kept)


def shown_of(line: bytes) -> str:
    """Returns what a terminal would show of a line with carriage returns: the last state of a
    progress bar, say."""
    states = [part for part in line.split(b"\r") if part]
    return (states[-1] if states else b"").decode("utf-8", "backslashreplace")


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 1] + ELLIPSIS


TYPE_CHECKING = False  # see supervisor/output/drain.py
if TYPE_CHECKING:
    from typing import TextIO

_COMMANDS = re.compile(r"(?:^[^\S\r\n]*:|##\w{0,20})(?P<last>(?<=:):|\[)", re.MULTILINE)
_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_LINE_END = re.compile(f"[{_ENDS}]")
_KEPT = 64
"""More than the beginning of a command takes; of blanks at the start of a line only the fact."""


class Defused:
    """A stream on which no line is a command, however its pieces are cut. Takes the place of
    `stream`; what our own commands are written to is `stream` itself, at the start of a line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._line = ""
        """The line so far: its end, or one blank for any number of them."""

    @property
    def encoding(self) -> str:
        return self.stream.encoding

    def write(self, text: str) -> int:
        """Writes the text; the last sign of what would be a command is shown by its code."""
        made = []
        start = 0
        for end in [match.end() for match in _LINE_END.finditer(text)] + [len(text)]:
            piece = text[start:end]
            start = end
            shown = _COMMANDS.sub(
                lambda match: f"{match[0][:-1]}\\x{ord(match['last']):02x}", self._line + piece
            )[len(self._line) :]
            made.append(shown)
            line = self._line + shown
            if piece and piece[-1] in _ENDS:
                self._line = ""
            else:
                self._line = line[-_KEPT:] if line.strip() else " " * bool(line)
                if len(line) > _KEPT and line.strip():
                    self._line = f"x{self._line}"  # its beginning is past
        self.stream.write("".join(made))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()


MOST_DIGITS = 9
"""Enough for every rank, count and job. `int` refuses texts of thousands of digits."""


def whole_number(text: str | None, most_digits: int = MOST_DIGITS) -> int | None:
    """The number of 0 or more that this text is; None where it is none. (`isdigit` alone says yes
    to `²`, for which `int` raises.)"""
    if not text or not text.isascii() or not text.isdigit() or len(text) > most_digits:
        return None
    return int(text)


def port_of(text: str | None) -> int | None:
    """The port that this text is, 1 to 65535; None where it is none."""
    port = whole_number(text, 5)
    return port if port is not None and 0 < port < 1 << 16 else None


def endpoint(text: str) -> tuple[str, int | None]:
    """The host and the port of `HOST:PORT`; an IPv6 address may stand in brackets. The host is ""
    where no colon parts the two, and the port None where it is none."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    return host[1:-1] if bracketed else host, port_of(port)
