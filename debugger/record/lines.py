"""The places from which a rank makes its calls, as a log that does not grow with their number.

A program is a loop, so what it has done since a similar moment it does again. Only a call that
comes from another place is written, a surprise, and with it how far back the moment is that is
expected to be repeated from then on. So whoever reads it has the places of all calls, from the
first one on. A million calls of a training loop are a handful of surprises, whatever loops there
are within it; a call that was left out, or made twice, is one or two more.

That is how LZ77 compresses a text; the moment is looked for when there is a surprise, which is
rare, so that all other calls cost one comparison.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from itertools import cycle, islice
from typing import TYPE_CHECKING, Generic, TypeVar

from .signature import CHAIN_STEP, MASK

if TYPE_CHECKING:  # a rank, which packs nothing, starts sooner without it
    from .snapshot import Place, Surprise

MOST_PERIOD = 4096
"""A loop that makes more calls is a surprise or two in each round."""
_CONTEXT = 4
"""Moments are alike if so many places before them were the same."""
_MOST_TRIES = 16
T = TypeVar("T", bound=Hashable)


class Predictor(Generic[T]):
    """Tells from where the next calls of a rank come: since the last surprise, from the places in
    `expected`, one after the other, again and again."""

    def __init__(self) -> None:
        self.expected: list[T] = []
        self._past: deque[T] = deque(maxlen=MOST_PERIOD)
        """Newest first."""

    def surprised(self, kept: int, place: T) -> int:
        """After `kept` calls that came as expected one has come from this place. Returns the period
        of what is expected from now on."""
        past = self._past
        if kept:
            begin = max(0, kept - MOST_PERIOD) % len(self.expected)
            again = cycle(self.expected[begin:] + self.expected[:begin])
            past.extendleft(islice(again, min(kept, MOST_PERIOD)))
        period = self._like_now(place)
        past.appendleft(place)
        self.expected = list(islice(past, period))[::-1]
        return period

    def _like_now(self, place: T) -> int:
        """Returns how long ago the latest call from this place was before which most was as now; 1,
        so that the place itself is expected, where there was none."""
        past, found, longest, at = self._past, 0, -1, -1
        # Counted first: to catch the ValueError of a search would swallow one that the handler of
        # a signal has raised meanwhile.
        for _ in range(min(past.count(place), _MOST_TRIES)):
            at = past.index(place, at + 1)
            alike = 0
            while alike < _CONTEXT and at + alike + 1 < len(past):
                if past[alike] != past[at + alike + 1]:
                    break
                alike += 1
            if alike > longest:
                found, longest = at, alike
            if alike == _CONTEXT:
                break
        return found + 1

    def drop(self) -> None:
        """The call that was the last surprise is taken back; the next one is a surprise."""
        self._past.popleft()
        self.expected = []


def place_at(surprises: Sequence[Surprise], seq: int) -> Place | None:
    """Returns the place of one call, which must not be before the first surprise."""
    while True:
        one = surprises[bisect_right(surprises, seq, key=lambda one: one.seq) - 1]
        if one.seq == seq:
            return one.place
        seq -= -((one.seq - seq) // one.period) * one.period


def mark_after(mark: int, seq: int, key: int) -> int:
    """Returns the running hash of a log's surprises after one more: `key` is its place's, 0 where
    that is not known."""
    return ((mark * CHAIN_STEP + seq) * CHAIN_STEP + key) & MASK


class PackedLines:
    """The log of calls of which all are known, by sequence number, one after the other: packed when
    it is asked for. Implements `LineLog`."""

    def __init__(self, calls: Iterable[tuple[int, Place | None]]) -> None:
        self._calls = calls

    @cached_property
    def surprises(self) -> Sequence[Surprise]:
        from .snapshot import Surprise

        predictor: Predictor[Place | None] = Predictor()
        found: list[Surprise] = []
        kept = 0
        for seq, place in self._calls:
            expected = predictor.expected
            if expected and expected[kept % len(expected)] == place:
                kept += 1
                continue
            found.append(Surprise(seq, place, predictor.surprised(kept, place)))
            kept = 0
        return found

    @cached_property
    def mark(self) -> Hashable:
        mark = 0
        for one in self.surprises:
            mark = mark_after(mark, one.seq, 0 if one.place is None else one.place.key)
        return len(self.surprises), mark
