"""Which nodes of a large job speak to the head through another one, its relay.

The first nodes that come, as many as the fan-in, speak to the head itself, and it takes no more
when it can help it: the next ones go below the first of these, and when that has as many, below the
second. Nobody moves after that, but who loses his relay: he goes to the head again, and stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ..record.reading.copies import FEW_NODES
from ..record.safe_text.whole_numbers import whole_number
from .offers import Offer

BELOW = b"below"
"""The first part of a message of, or to, a node below a relay; its channel there follows."""
_VARIABLE = "DISTDEBUG_FAN_IN"
"""For tests: with few nodes there is a tree as well."""


def fan_in() -> int:
    """So many nodes speak to the head itself, and through each of these."""
    return whole_number(os.environ.get(_VARIABLE), 3) or FEW_NODES


@dataclass(slots=True)
class _Relay:
    """A node with others below it: `leaves` are their numbers. `asked`: it was asked to listen."""

    leaves: list[int] = field(default_factory=list)
    asked: bool = False
    offer: Offer | None = None


class Tree:
    """As the head has made it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._relays: dict[int, _Relay] = {}
        self._unable: set[int] = set()
        self._relay_of: dict[int, int] = {}

    def place(self, number: int, able: Callable[[int], bool]) -> int:
        """Below which node this new one belongs; 0: it stays with the head. `able`: whether a node
        can be a relay."""
        if number <= self._most:
            return 0
        for one in range(1, self._most + 1):
            relay = self._relays.setdefault(one, _Relay())
            if len(relay.leaves) < self._most and one not in self._unable and able(one):
                relay.leaves.append(number)
                self._relay_of[number] = one
                return one
        return 0

    @property
    def to_ask(self) -> Sequence[int]:
        """Who is to listen for others, and does not know it yet."""
        return [number for number, one in self._relays.items() if one.leaves and not one.asked]

    def asked(self, number: int) -> None:
        """It was asked to listen."""
        self._relays[number].asked = True

    def relaying(self, number: int, offer: Offer | None) -> Collection[int]:
        """It listens there, or cannot (None); who is to go below it."""
        relay = self._relays.get(number)
        if relay is None or not relay.asked:
            return ()
        relay.offer = offer
        if offer is None:
            self._unable.add(number)
        return tuple(relay.leaves)

    def offer_of(self, number: int) -> Offer | None:
        """Where it listens, if it does."""
        return self._relays[number].offer

    def relay_of(self, number: int) -> int:
        """Below which node it belongs; 0: none."""
        return self._relay_of.get(number, 0)
