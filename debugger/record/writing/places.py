"""Gives groups and point-to-point channels their places in a flight record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Any

from .. import layout, rank_runs
from ..layout import Definition, GroupState, Role
from .flight_file import FlightFile
from .slots import ChannelSlot, GroupSlot

_pack_group_counts = Struct("@" + layout.GROUP_COUNTS.format[1:]).pack_into
_pack_channel_counts = Struct("@" + layout.CHANNEL_COUNTS.format[1:]).pack_into
_GROUP_COUNTS_AT = layout.GROUP_COUNTS_AT


class FlightPlaces(FlightFile):
    """A flight record whose groups and channels can be entered."""

    def __init__(self, path: Path, *, role: Role = Role.UNKNOWN) -> None:
        super().__init__(path, role=role)
        self._next_group = 0
        self._free_groups: list[int] = []
        self._next_channel = 0
        self._group_slots: dict[int, GroupSlot] = {}
        self._number = 0
        self._next_slot = 0
        """The place in the ring of the slot of the call with this number, in words."""
        self._keep_at = layout.RING // 8
        """The number + 1 of the next call that looks for waits whose slots will be overwritten."""
        self._latest: GroupSlot | ChannelSlot | None = None
        """The group of the latest call, or its channel: its counts are in the ring."""

    def add_group(self, record: Mapping[str, Any]) -> GroupSlot | None:
        """A place for a new group; None when all are in use (its calls are then not recorded)."""
        with self._lock:
            definition = self._add(Definition.GROUP, _described(record))
            if not definition:
                return None
            if self._next_group < layout.GROUPS:
                index = self._next_group
                self._next_group += 1
            elif self._free_groups:
                index = self._free_groups.pop(0)
            else:
                return None
            slot = GroupSlot(index)
            base = layout.CHECKPOINTS_OFFSET + (index * layout.CHECKPOINTS * layout.CHECKPOINT.size)
            self._map[base : base + layout.CHECKPOINTS * layout.CHECKPOINT.size] = bytes(
                layout.CHECKPOINTS * layout.CHECKPOINT.size
            )
            creating, last = int(GroupState.CREATING), self._number
            layout.GROUP.pack_into(
                self._map, slot.offset, definition, creating, 0, 0, 0, 0, 0, last
            )
            self._group_slots[index] = slot
            return slot

    def group_state(self, slot: GroupSlot, state: GroupState) -> None:
        """Say that a group is ready for use, or destroyed (its place may be used again)."""
        with self._lock:
            if self._group_slots.get(slot.index) is not slot:
                return  # destroyed before
            self._write_counts(slot)
            self._map[slot.offset + layout.GROUP_STATE_AT] = int(state)
            if state is GroupState.DESTROYED:
                del self._group_slots[slot.index]
                if self._latest is slot:
                    self._latest = None  # what is written here now is another group's
                self._free_groups.append(slot.index)

    def _write_counts(self, slot: GroupSlot | ChannelSlot, latest: int = 0) -> None:
        """Writes the counts as they are now, whichever thread has changed them. `latest`: the
        latest call of a group that has made none, which was written when it was made, or has taken
        back its only one since."""
        if isinstance(slot, ChannelSlot):
            if slot.index != layout.NO_CHANNEL:
                at = slot.offset + layout.CHANNEL_COUNTS_AT
                _pack_channel_counts(self._map, at, slot.issued, slot.chain, slot.last)
        elif slot.last or latest:
            _pack_group_counts(
                self._map,
                slot.offset + _GROUP_COUNTS_AT,
                slot.issued,
                0,
                slot.chain,
                slot.exact,
                slot.balance,
                slot.last or latest,
            )

    def add_creation(self, record: Mapping[str, Any]) -> bool:
        """Put a group creation, in which every rank must take part, on record; False when there is
        no room for it."""
        return self._add(Definition.CREATION, _described(record)) != 0

    def add_channel(self, record: Mapping[str, Any]) -> ChannelSlot:
        """A place for a new point-to-point channel. When all are in use, the calls of further ones
        are on record, their counts are not."""
        with self._lock:
            if self._next_channel >= layout.CHANNELS:
                return ChannelSlot(layout.NO_CHANNEL)
            definition = self._add(Definition.CHANNEL, record)
            if not definition:
                return ChannelSlot(layout.NO_CHANNEL)
            slot = ChannelSlot(self._next_channel)
            self._next_channel += 1
            layout.CHANNEL.pack_into(self._map, slot.offset, definition, 0, 0, 0)
            return slot


def _described(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**record, "ranks": rank_runs.packed(record["ranks"])}
