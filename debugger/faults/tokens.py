"""Cuts a fault's text into words, and says what is wrong with a caret under the word."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ..record.safe_text import clean

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?[A-Za-z%]*)
  | (?P<word>[^\W\d]\w*(?:[.-]\w+)*)
  | (?P<sign><->|->|\.\.|[()\[\]{}=,@\#|])
    """,
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t"}
WORD = re.compile(r"[^\W\d]\w*(?:[.-]\w+)*")


class Shape(Enum):
    """The form of a token."""

    WORD = "a word"
    NUMBER = "a number"
    STRING = "a quoted text"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is a string's content, and what is written otherwise. `start`, `end`: its place in
    the spec."""

    shape: Shape
    text: str
    start: int
    end: int


class SpecError(ValueError):
    """A fault's text cannot be read; the message says why, in one sentence. `below`: the text, a
    caret under the word from `start` to `end`, and what is possible."""

    def __init__(
        self, sentence: str, spec: str, start: int, end: int, possible: Sequence[str] = ()
    ) -> None:
        super().__init__(sentence)
        self.start, self.end = start, end
        before, word = spec[:start], spec[start : max(end, start + 1)]
        caret = " " * _columns(before) + "^" * max(1, _columns(word))
        self.below = (f"  {clean(spec)}", f"  {caret}", *(f"  {line}" for line in possible))


def tokens(spec: str) -> list[Token]:
    """The words of a spec, and a last token that is its end. Raises SpecError."""
    found = []
    place = 0
    while place < len(spec):
        match = _TOKEN.match(spec, place)
        if match is None:
            raise SpecError(_why_no_token(spec[place:]), spec, place, place + 1)
        start, place = place, match.end()
        shape = str(match.lastgroup)
        if shape == "string":
            text = re.sub(
                r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), match.group()[1:-1], flags=re.S
            )
            found.append(Token(Shape.STRING, text, start, place))
        elif shape != "space":
            found.append(Token(Shape[shape.upper()], match.group(), start, place))
        if not match.group().isprintable():
            bad = next(at for at, one in enumerate(match.group()) if not one.isprintable())
            raise SpecError(
                "a control character stands in it; write \\n and \\t in quotes",
                spec,
                start + bad,
                start + bad + 1,
            )
    return [*found, Token(Shape.END, "", len(spec), len(spec))]


def quoted(text: str) -> str:
    """The text as a spec says it: bare where it is a plain word."""
    if WORD.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\t", "\\t") + '"'


def nearest(word: str, possible: Iterable[str]) -> str:
    """`; did you mean kill?`, or nothing where no name is near."""
    names = {name.lower(): name for name in possible}
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def _why_no_token(rest: str) -> str:
    if rest[0] in "\"'":
        return "this quotation mark has no other one that ends the text"
    if rest[0] == ";":
        return "one fault for each --inject; give the flag again for another one"
    return f"{clean(rest[0])!r} means nothing here"


def _columns(text: str) -> int:
    """Returns how wide a terminal shows the text."""
    shown = clean(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in shown)
    return len(shown) + wide - sum(unicodedata.combining(one) > 0 for one in shown)
