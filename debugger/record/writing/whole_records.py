"""Writes the flight record of a rank whose story is known to its end: of a plan, as its simulation
came out, or of a dump of another recorder. Readers see no difference to one that the rank has
written itself.

The file is sparse: of 4 MiB it takes what the rank has done. Times are Unix time.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import layout
from ..definitions import channel_row, creation_row, group_row, site_row
from ..layout import CallState, Definition, Role
from ..ops import OP_CODES
from ..snapshot import Call, CallSite, GroupKey, Rank, place_of
from .flight_file import FlightFile

MANY_RANKS = 256
CALLS_OF_MANY = 256
"""Of so many ranks, records hold the last calls only: they are there to be looked at."""
_NOTHING = bytes(mmap.PAGESIZE)


def write_whole(
    path: Path,
    rank: Rank,
    identity: Mapping[str, Any],
    ranks: int = 1,
) -> None:
    """Writes the record, one of those of so many `ranks`. Raises OSError."""
    most = CALLS_OF_MANY if ranks > MANY_RANKS else layout.RING
    made = _WholeRecord(path, rank)
    made.identify({"host": rank.host, "job": rank.job, **identity})
    made.tell([] if rank.history is None else rank.history.recent(most))
    made.save()


class _WholeRecord(FlightFile):
    """The record, in memory until it is saved: a disk that is full is an error of `save`, not of a
    page that is written."""

    def __init__(self, path: Path, rank: Rank) -> None:
        self._of = rank
        self._groups: dict[GroupKey, int] = {}
        self._channels: dict[object, int] = {}
        super().__init__(path)

    def _made(self, path: Path) -> mmap.mmap:
        del path
        return mmap.mmap(-1, layout.FILE_BYTES)

    def _write_header(self) -> None:
        rank = self._of
        layout.HEADER.pack_into(
            self._map,
            0,
            layout.MAGIC,
            layout.VERSION,
            rank.pid,
            rank.rank,
            rank.world_size,
            rank.local_rank,
            rank.restart_count,
            int(Role.RANK),
            rank.max_restarts,
            rank.started_ns,
            0,
            rank.pid,
            0,
        )

    def save(self) -> None:
        """Writes the file, which must not exist. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            os.ftruncate(descriptor, layout.FILE_BYTES)
            for at in range(0, layout.FILE_BYTES, mmap.PAGESIZE):
                page = self._map[at : at + mmap.PAGESIZE]
                if page != _NOTHING:
                    os.pwrite(descriptor, page, at)
        finally:
            os.close(descriptor)

    def tell(self, calls: Sequence[Call]) -> None:
        """Puts all that is known of the rank on record. Groups come first into the texts' room, and
        calls last."""
        rank = self._of
        for key, group in list(rank.groups.items())[: layout.GROUPS]:
            slot = self.add_group(group_row(group))
            if slot is None:
                break
            self._groups[key] = slot.index
            self._map[slot.offset + layout.GROUP_STATE_AT] = int(group.state)
            layout.GROUP_COUNTS.pack_into(
                self._map,
                slot.offset + layout.GROUP_COUNTS_AT,
                group.issued,
                0,
                group.chain,
                group.exact,
                group.balance,
                _mark(group.last),
            )
        for one in rank.channels[: layout.CHANNELS]:
            channel = self.add_channel(channel_row(one, self._groups.get(one.group, 0)))
            if channel.index == layout.NO_CHANNEL:
                break
            self._channels[one.place] = channel.index
            at = channel.offset + layout.CHANNEL_COUNTS_AT
            layout.CHANNEL_COUNTS.pack_into(self._map, at, one.issued, one.chain, _mark(one.last))
            self.took(channel, one.taken)
        for creation in rank.creations:
            self.add_creation(creation_row(creation, self._site(creation.site)))
        for note in rank.notes:
            head = {"kind": note.kind, "t_ns": note.time_ns, "message": note.message[:4000]}
            text = {**head, **note.data, "site": self._site(note.site)}
            self.define(Definition.NOTE, json.dumps(text, default=str), key=id(note))
        for place, wait in enumerate(rank.waits[: layout.THREADS]):
            layout.THREAD.pack_into(
                self._map,
                layout.THREADS_OFFSET + place * layout.THREAD_BYTES,
                1,
                int(wait.activity),
                0,
                0,
                wait.thread,
                _mark(wait.call),
                self._add(Definition.DETAIL, wait.detail) if wait.detail else 0,
                self._site(wait.site),
                wait.since_ns,
                wait.serial + place,
                1,
            )
        location = self._site(rank.location)
        self._fill_ring(calls)
        layout.DYNAMIC.pack_into(
            self._map,
            layout.DYNAMIC_OFFSET,
            rank.heartbeat_ns,
            rank.calls,
            self._heap_used,
            int(rank.phase),
            0,
            rank.exit_code or 0,
            rank.exiting_ns or rank.process.ended_ns or 0,
            rank.layer_serial,
            rank.free_threads,
            0,
            rank.layer_serial,
            location,
        )

    def _site(self, site: CallSite | None) -> int:
        if site is None:
            return 0
        return self.define(Definition.SITE, json.dumps(site_row(site)), site)

    def _fill_ring(self, calls: Sequence[Call]) -> None:
        before: dict[object, int] = {}
        for call in calls:
            signature = call.signature
            where = place_of(call)
            mark = call.number + 1
            flags = layout.ASYNC_FLAG * call.is_async | layout.AGREES_FLAG * call.agrees
            layout.SLOT.pack_into(
                self._map,
                layout.RING_OFFSET + call.number % layout.RING * layout.SLOT.size,
                mark,
                self._groups.get(call.group, layout.GROUPS),
                0,
                OP_CODES.get(signature.op, len(OP_CODES)),
                int(call.state),
                flags,
                self.define(Definition.SIGNATURE, signature.to_json()),
                self._site(call.site),
                before.get(where, 0) & 0xFFFFFFFF,
                self._channels.get(where, layout.NO_CHANNEL),
                call.seq,
                call.chain,
                call.exact,
                call.balance,
                call.issued_ns,
                call.started_ns if call.state is not CallState.ISSUED else 0,
                call.completed_ns,
                mark,
            )
            before[where] = mark


def _mark(number: int | None) -> int:
    return 0 if number is None else number + 1
