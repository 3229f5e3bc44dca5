"""Takes the meaning from lines that a CI system would obey: GitHub's and Azure's runners, TeamCity.

A runner takes commands from whatever a step prints: `::stop-commands::x` at the start of a line,
also behind blanks, and `##[...]`, `##vso[...]` and `##teamcity[...]` anywhere in one. So a rank's
text could mark a step as failed, hide what follows, or set variables of later steps.
"""

from __future__ import annotations

import re

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
