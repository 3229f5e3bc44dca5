"""The file of a flight record as its one writer sees it: made, mapped, and filled with texts.

Everything here happens rarely. What happens with every call is in `writer`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from struct import Struct
from typing import Any

from ...system import proc
from .. import layout
from ..layout import Definition, GroupState, Phase, Role, packed_ranks
from ..lost_pages import kept_file
from ..notes import NoteData
from ..signature import place_key
from .slots import ChannelSlot, GroupSlot, Surprises

_now = time.monotonic_ns

_pack_group_counts = Struct("@" + layout.GROUP_COUNTS.format[1:]).pack_into
_pack_channel_counts = Struct("@" + layout.CHANNEL_COUNTS.format[1:]).pack_into
_GROUP_COUNTS_AT = layout.GROUP_COUNTS_AT
NOTES_BYTES = 64 << 10
"""The part of the texts' room that only notes may use: how a rank without room ends is recorded."""


class FlightFile:
    """A new flight record: its header, its phase, and its definitions.

    Raises OSError when the file cannot be made or allocated; after that no method raises for
    lack of room: texts that do not fit become id 0 ("unknown").
    """

    def __init__(self, path: Path, *, role: Role = Role.UNKNOWN) -> None:
        if sys.byteorder != "little":
            raise OSError("flight records need a little-endian machine")
        self.path = path
        self.detached = False
        self._use(self._made(path))
        self.rank = -1
        self._role = role
        self._started_ns = _now()
        stat = proc.read_stat("self")
        self._start_ticks = stat.start_ticks if stat is not None else 0
        self._world_size = self._local_rank = -1
        self._restart_count = self._max_restarts = 0
        self._lock = threading.RLock()
        self._heap_used = 0
        self._ids: dict[tuple[int, Hashable], int] = {}
        self._counts: dict[int, int] = {}
        self._place_keys = {0: 0}
        """The keys of places by the ids of their sites."""
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
        self._write_header()
        self.phase(Phase.RUNNING)
        with contextlib.suppress(FileNotFoundError):  # that of a planned rank is no file
            os.rename(path.with_suffix(".new"), path)

    def _made(self, path: Path) -> mmap.mmap:
        """The memory of the new record. Readers take its file for one once it has a header."""
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        return kept_file(path.with_suffix(".new"), layout.FILE_BYTES)

    def _use(self, mapped: mmap.mmap) -> None:
        self._map = mapped
        self._words = memoryview(mapped).cast("Q")
        # From the first slot of the ring on; all of them, and one field of each by its word there.
        self._ring = memoryview(mapped)[layout.RING_OFFSET :]
        self._started = self._words[(layout.RING_OFFSET + layout.STARTED_AT) // 8 :]
        self._completed = self._words[(layout.RING_OFFSET + layout.COMPLETED_AT) // 8 :]

    # -- who this is ---------------------------------------------------------------------------

    def identify(self, identity: Mapping[str, Any]) -> None:
        """Put the free-form identity (host, job, command line, versions) on record."""
        text = json.dumps(identity).encode()[: layout.IDENTITY_BYTES - 1]
        start = layout.IDENTITY_OFFSET
        self._map[start : start + layout.IDENTITY_BYTES] = text.ljust(layout.IDENTITY_BYTES, b"\0")

    def claim(
        self,
        rank: int,
        world_size: int,
        local_rank: int,
        restart_count: int,
        max_restarts: int = 0,
    ) -> None:
        """Say which rank this is, and how often its launcher has restarted it and may do so."""
        self.rank, self._world_size = rank, world_size
        self._local_rank, self._restart_count = local_rank, restart_count
        self._max_restarts = max_restarts
        self._role = Role.RANK
        self._write_header()

    def _write_header(self) -> None:
        layout.HEADER.pack_into(
            self._map,
            0,
            layout.MAGIC,
            layout.VERSION,
            os.getpid(),
            self.rank,
            self._world_size,
            self._local_rank,
            self._restart_count,
            int(self._role),
            max(0, self._max_restarts),
            self._started_ns,
            time.time_ns() - _now(),
            os.getpid(),  # that of the main thread, too
            self._start_ticks,
        )

    def take_name(self, name: Path) -> None:
        """Call the file by its rank, which a reader takes for whole. An earlier process's record
        steps aside; that of a living rival keeps the name, and both stay readable."""
        with contextlib.suppress(OSError):
            if name.exists() and not _written_by_the_living(name):
                os.rename(name, name.with_name(f"{name.stem}.before-{os.getpid()}.flight"))
            os.link(self.path, name)
            os.unlink(self.path)

    def phase(self, phase: Phase, exit_code: int = 0) -> None:
        """Say how far the process has come; from `EXITING` on with the exit code it will have, and
        since when: its end, seconds later maybe, is that of the same leaving."""
        began = phase is Phase.ENDED and self._map[layout.PHASE_AT] == Phase.EXITING
        self._map[layout.PHASE_AT] = int(phase)
        exiting_ns = 0
        if began:
            _, exiting_ns = layout.EXIT.unpack_from(self._map, layout.EXIT_AT)
        elif phase >= Phase.EXITING:
            exiting_ns = _now()
        layout.EXIT.pack_into(self._map, layout.EXIT_AT, exit_code, exiting_ns)

    def detach(self) -> None:
        """Detaches a forked child: the file is the parent's, so it writes to private memory from
        now on."""
        self._use(mmap.mmap(-1, layout.FILE_BYTES))
        self._lock = threading.RLock()
        self.detached = True

    # -- definitions ---------------------------------------------------------------------------

    def define(self, kind: Definition, text: str, key: Hashable = None) -> int:
        """The id of this text, which is written once; 0 when there is no room left.

        `key` (default: the text) is what makes two definitions the same.
        """
        known = (int(kind), text if key is None else key)
        with self._lock:
            number = self._ids.get(known)
            if number is not None:
                return number
            raw = text.encode("utf-8", "backslashreplace")
            head = layout.DEFINITION
            used = self._heap_used
            room = layout.HEAP_BYTES - (0 if kind is Definition.NOTE else NOTES_BYTES)
            if used + head.size + len(raw) > room:
                self._map[layout.FLAGS_AT] |= layout.HEAP_FULL_FLAG
                return 0
            number = self._counts.get(int(kind), 0) + 1
            self._counts[int(kind)] = number
            at = layout.HEAP_OFFSET + used
            head.pack_into(self._map, at, len(raw), int(kind), number)
            self._map[at + head.size : at + head.size + len(raw)] = raw
            self._heap_used = used + head.size + len(raw)
            self._words[layout.HEAP_USED_AT // 8] = self._heap_used
            self._ids[known] = number
            if kind is Definition.SITE:
                row = json.loads(text)
                sites = [row[:4], *(row[4] if len(row) > 4 else ())]
                self._place_keys[number] = place_key((*one, "")[:4] for one in sites)
            return number

    @property
    def heap_half_full(self) -> bool:
        """Whether the heap is half full: from here on signatures go to the volatile area, so that
        groups and notes find room."""
        return self._heap_used > layout.HEAP_BYTES // 2

    def note(self, note: NoteData, message: str, site: int = 0) -> None:
        """Put an event on record, with the time now."""
        head = {"kind": note.KIND, "t_ns": _now(), "message": message[:4000], "site": site}
        text = json.dumps({**head, **note.data()}, default=str)
        self.define(Definition.NOTE, text, key=(note.KIND, _now()))

    def _add(self, kind: Definition, record: Mapping[str, Any]) -> int:
        return self.define(kind, json.dumps(record), key=(id(self), self._counts.get(int(kind), 0)))

    # -- groups and channels ----------------------------------------------------------------------

    def add_group(self, record: Mapping[str, Any]) -> GroupSlot | None:
        """A place for a new group; None when all are in use (its calls are then not recorded)."""
        with self._lock:
            definition = self._add(Definition.GROUP, described(record))
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
            slot.surprises = Surprises()
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
                slot.surprises = None
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
        return self._add(Definition.CREATION, described(record)) != 0

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
            layout.CHANNEL.pack_into(self._map, slot.offset, definition, 0, 0, 0, 0)
            slot.surprises = Surprises()
            return slot

    def took(self, channel: ChannelSlot, count: int = 1) -> None:
        """Receives from any source have taken so many messages of this channel."""
        with self._lock:
            if channel.index != layout.NO_CHANNEL:
                channel.taken += count
                at = channel.offset + layout.CHANNEL_TAKEN_AT
                layout.U32.pack_into(self._map, at, channel.taken)


def place_of_this_process(directory: Path) -> Path:
    """Returns where its flight record stands in a run directory, as long as nobody knows which rank
    it is. One that is there is of what the process was before `exec`, and makes room: it named no
    rank."""
    path = directory / "ranks" / f"pid-{os.getpid()}.flight"
    with contextlib.suppress(OSError):
        path.unlink()
    return path


def _written_by_the_living(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(layout.HEADER.size)
    if len(header) < layout.HEADER.size:  # somebody has cut it short
        return False
    return proc.exists(layout.HEADER.unpack(header)[2])


def described(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**record, "ranks": packed_ranks(record["ranks"])}
