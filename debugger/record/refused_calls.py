"""Takes a call that the backend refused at once out of the counts and chains of its group.

The other ranks never meet such a call: for them it is as if it had not been made. It stays in the
ring, as failed, and no call of its group leads to it.
"""

from __future__ import annotations

from . import layout
from .places import FlightPlaces
from .signature import MASK
from .slots import CallDescription, ChannelSlot, GroupSlot

_ADDEND = 0x7F4A7C15
_INVERSE = pow(0x9E3779B97F4A7C15, -1, MASK + 1)
_PREVIOUS_FIELD = 8
_LOW_32 = 0xFFFFFFFF


class RefusedCalls(FlightPlaces):
    """A flight record whose last call may be taken back."""

    def take_back(self, number: int, group: GroupSlot, call: CallDescription) -> bool:
        """Count as if this call had not been made. False, with nothing changed, where the group has
        made another since: then the program's threads have an order that nobody can tell."""
        place: GroupSlot | ChannelSlot = group if call.channel is None else call.channel
        with self._lock:
            at = layout.RING_OFFSET + number % layout.RING * layout.SLOT.size
            row = layout.SLOT.unpack_from(self._map, at)
            mark = number + 1
            if place.last != mark or row[0] != mark:
                return False
            previous = row[_PREVIOUS_FIELD]
            place.last = mark - ((mark - previous) & _LOW_32) if previous else 0
            place.issued -= 1
            place.chain = _before(place.chain, call.agree)
            if isinstance(place, ChannelSlot):
                if place.index != layout.NO_CHANNEL:
                    layout.CHANNEL_COUNTS.pack_into(
                        self._map,
                        place.offset + layout.CHANNEL_COUNTS_AT,
                        place.issued,
                        place.chain,
                        place.last,
                    )
                return True
            place.exact = _before(place.exact, call.exact)
            place.balance = (place.balance - call.contribution * (2 * place.issued + 1)) & MASK
            layout.GROUP_COUNTS.pack_into(
                self._map,
                place.offset + layout.GROUP_COUNTS_AT,
                place.issued,
                place.completed,
                place.chain,
                place.exact,
                place.balance,
                place.last,
            )
            return True


def _before(chain: int, added: int) -> int:
    """The chain before `added` went into it: see `FlightWriter.begin`."""
    return ((chain - _ADDEND) * _INVERSE & MASK) ^ added
