"""Takes a call that the backend refused at once out of the counts and chains of its group.

The other ranks never meet such a call: for them it is as if it had not been made. It stays in the
ring, as failed, and no call of its group leads to it.
"""

from __future__ import annotations

from .. import layout
from ..signature import CHAIN_STEP, MASK
from .slots import CallDescription, ChannelSlot, GroupSlot
from .waits import FlightWaits

_INVERSE = pow(CHAIN_STEP, -1, MASK + 1)
_PREVIOUS_FIELD = 8
_LOW_32 = 0xFFFFFFFF


class RefusedCalls(FlightWaits):
    """A flight record whose last call may be taken back."""

    def take_back(self, number: int, group: GroupSlot, call: CallDescription) -> bool:
        """Count as if this call had not been made. False, with nothing changed, where the group has
        made another since: then the program's threads have an order that nobody can tell."""
        at = layout.RING_OFFSET + number % layout.RING * layout.SLOT.size
        row = layout.SLOT.unpack_from(self._map, at)
        mark = number + 1
        if row[0] != mark:
            return False
        previous = row[_PREVIOUS_FIELD]
        before = mark - ((mark - previous) & _LOW_32) if previous else 0
        place: GroupSlot | ChannelSlot = group if call.channel is None else call.channel
        if call.channel is not None:
            exact = balance = 0
        else:
            exact = call.exact if call.exact != call.agree else 0
            balance = call.contribution
        # The inverse of what `FlightWriter.begin` does. Nothing is called from here to the end of
        # the sums, so no other thread can come between: see `writer`.
        if place.last != mark:
            return False
        place.last = before
        place.issued = seq = place.issued - 1
        place.chain = (place.chain - call.agree) * _INVERSE & MASK
        if call.channel is None:
            group.checkpoint_at = seq | layout.CHECKPOINT_EVERY - 1
        if exact:
            group.exact = (group.exact - exact * (2 * seq + 1)) & MASK
        if balance:
            group.balance = (group.balance - balance * (2 * seq + 1)) & MASK
        # Its own slot in the ring still has the counts with it: readers are to take them from the
        # place. Its byte is written last, so that they find one or the other whole.
        self._write_counts(place, mark)
        self._map[at + layout.FLAGS_IN_SLOT_AT] = row[5] | layout.REFUSED_FLAG
        return True
