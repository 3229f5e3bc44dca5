"""The net below what draws and what answers keys: a fault becomes a sentence, and the app goes on.

The first fault of each place is kept with its traceback, for `main` to print when the app is left:
while it runs, the terminal is its own.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from .text import safe

Result = TypeVar("Result")
MOST_SENTENCE = 600


class Guard:
    """Runs what may fail."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        """Place -> the traceback of its first fault."""

    def noted(self, place: str, error: Exception) -> str:
        """The sentence to show for it."""
        if place not in self.kept:
            lines = traceback.format_exception(error)
            self.kept[place] = "".join(safe(row, 2000) + "\n" for row in "".join(lines).split("\n"))
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return safe(
            f"{place} failed, a bug of distdebug's app ({what}); the rest goes on", MOST_SENTENCE
        )

    def run(
        self, place: str, make: Callable[[], Result], otherwise: Callable[[str], Result]
    ) -> Result:
        """Returns what `make` returns; where it raises, what `otherwise` makes of the sentence."""
        try:
            return make()
        except Exception as error:
            return otherwise(self.noted(place, error))


class Guarded(Protocol):
    """A part of the app with a guard, and a place for sentences."""

    guard: Guard

    def say(self, sentence: str, severity: str = "information") -> None:
        """Tell the user."""


Method = TypeVar("Method", bound=Callable[..., None])


def guarded(place: str, again: bool = True) -> Callable[[Method], Method]:
    """A method that tells its fault instead of raising it; without `again` the first one alone:
    it is not the user who calls it, and it may be called very often."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Guarded, *arguments: Any, **named: Any) -> None:
            try:
                method(self, *arguments, **named)
            except Exception as error:
                known = place in self.guard.kept
                sentence = self.guard.noted(place, error)
                if again or not known:
                    self.say(sentence, "error")

        return cast(Method, call)

    return decorate
