r"""Makes text that came from a rank harmless before it reaches a terminal, a log or a report.

A rank's text can hold escape sequences that retitle a terminal or hide what stands above,
newlines that forge another rank's line, and invisible or reordering characters. All of them
become visible `\xNN`, `\uNNNN` or `\UNNNNNNNN` escapes; nothing else changes.
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
