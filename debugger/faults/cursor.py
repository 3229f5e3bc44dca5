"""Walks over the tokens of a spec; every complaint is about a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .tokens import Shape, SpecError, Token, tokens


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
