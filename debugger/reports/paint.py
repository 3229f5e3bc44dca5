"""Colour for reports: marks what to read first, and means nothing that the words do not say."""

from __future__ import annotations

BOLD, DIM = 1, 2
RED, GREEN, YELLOW = 31, 32, 33


class Paint:
    """Called with a text and ANSI attributes; returns the text as it is where colour is off."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, text: str, *attributes: int) -> str:
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(map(str, attributes))}m{text}\x1b[0m"
