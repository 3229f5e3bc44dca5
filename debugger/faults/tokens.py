"""Cuts a fault's text into words and walks over them; what is wrong is said with a caret under the
word."""

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


@dataclass(frozen=True, slots=True)
class Written:
    """A value as it is written: tokens of one word, of a list in brackets, or of a range."""

    form: str  # "one", "list", "range"
    parts: tuple[Token, ...]
    start: int
    end: int

    @property
    def one(self) -> Token | None:
        """The token, where it is a single one."""
        return self.parts[0] if self.form == "one" else None


class Cursor:
    """The tokens that are left."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._tokens = tokens(spec)
        self._at = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def after(self, count: int) -> Token:
        """The token so many after the next one; the last one, where there are not so many."""
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]

    def take(self) -> Token:
        """The next token, which the last one, the end, stays."""
        token = self.next
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def sees(self, *signs: str) -> bool:
        """Whether the next token is one of these signs."""
        return self.next.shape is Shape.SIGN and self.next.text in signs

    def accept(self, sign: str) -> bool:
        """Take this sign, if it is the next token."""
        if self.sees(sign):
            self.take()
            return True
        return False

    def expect(self, sign: str, why: str) -> Token:
        """Take this sign. Raises SpecError with `why`."""
        if not self.sees(sign):
            raise self.error(why)
        return self.take()

    def error(
        self,
        sentence: str,
        token: Token | Written | None = None,
        possible: Sequence[str] = (),
    ) -> SpecError:
        """The complaint about this token, or the next one."""
        token = token or self.next
        return SpecError(sentence, self.spec, token.start, token.end, possible)

    def number(self, what: str) -> int:
        """A whole number from 0 on. Raises SpecError."""
        token = self.next
        if token.shape is not Shape.NUMBER or not token.text.isascii() or not token.text.isdigit():
            raise self.error(f"{what} is a whole number from 0 on")
        if len(token.text) > 12:
            raise self.error(f"{what} has too many digits")
        return int(self.take().text)

    def span(self, what: str) -> tuple[int, int | None]:
        """`5`, `2..5`, `100..`: the first and the last one (None: for ever). Raises SpecError."""
        start = self.next
        first = self.number(what)
        if not self.accept(".."):
            return first, first
        if self.next.shape is not Shape.NUMBER:
            return first, None
        end = self.next
        last = self.number(what)
        if last < first:
            whole = Written("range", (), start.start, end.end)
            raise self.error(f"from {first} to {last} there is none", whole)
        return first, last

    def value(self) -> Written:
        """Reads one value, whatever it means. Raises SpecError."""
        token = self.next
        closing = {"[": "]", "{": "}"}.get(token.text) if token.shape is Shape.SIGN else None
        if closing is not None:
            self.take()
            parts = []
            while not self.sees(closing):
                if self.next.shape not in (Shape.NUMBER, Shape.WORD):
                    raise self.error("a list is of numbers, such as [2,3]")
                parts.append(self.take())
                if not self.accept(","):
                    break
            end = self.expect(closing, f"the list is not closed; a {closing} is missing")
            return Written("list", tuple(parts), token.start, end.end)
        if token.shape not in (Shape.WORD, Shape.NUMBER, Shape.STRING):
            raise self.error("a value is missing")
        self.take()
        if token.shape is Shape.NUMBER and self.accept(".."):
            last = self.next
            if last.shape is not Shape.NUMBER:
                raise self.error("the range has no end, such as 1..10")
            self.take()
            return Written("range", (token, last), token.start, last.end)
        return Written("one", (token,), token.start, token.end)
