"""Writes the flight record of a rank whose story is known to its end: of a plan, as its simulation
came out, or of a dump of another recorder. Readers see no difference to one that the rank has
written itself.

The file is sparse: of 4 MiB it takes what the rank has done. Times are Unix time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import layout, rank_runs
from ..layout import CallState, Definition, Role
from ..ops import OP_CODES
from ..snapshot import Call, CallSite, Channel, GroupKey, Rank
from .flight_file import NOTES_BYTES

MOST_CALLS = layout.RING


def write_whole(
    path: Path,
    rank: Rank,
    identity: Mapping[str, Any],
    most_calls: int = MOST_CALLS,
    calls: Sequence[Call] | None = None,
) -> None:
    """Write the record, of its last calls at most so many: those of its history, or `calls`, where
    it has none. Raises OSError."""
    most_calls = min(most_calls, layout.RING)
    if calls is None:
        calls = [] if rank.history is None else rank.history.recent(most_calls)
    made = _Record(rank, identity, calls[-most_calls:])
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(descriptor, layout.FILE_BYTES)
        for at, data in made.parts():
            os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)


class _Record:
    def __init__(self, rank: Rank, identity: Mapping[str, Any], calls: Sequence[Call]) -> None:
        self._rank = rank
        self._identity = identity
        self._heap = bytearray()
        self._ids: dict[tuple[Definition, object], int] = {}
        self._counts: dict[Definition, int] = {}
        self._groups = {key: at for at, key in enumerate(list(rank.groups)[: layout.GROUPS])}
        self._channels = {
            _key_of(channel): at for at, channel in enumerate(rank.channels[: layout.CHANNELS])
        }
        self._calls = calls

    def parts(self) -> list[tuple[int, bytes]]:
        """Returns what to write where. Groups come first into the texts' room, and calls last."""
        groups = self._write_groups()
        channels = self._write_channels()
        for creation in self._rank.creations:
            self._write_creation(creation)
        for note in self._rank.notes:
            text = {"kind": note.kind, "t_ns": note.time_ns, "message": note.message[:4000]}
            more = {**note.data, "site": self._site(note.site)}
            self._define(Definition.NOTE, {**text, **more}, None, room=layout.HEAP_BYTES)
        threads = self._threads()
        location = self._site(self._rank.location)
        ring = self._ring()
        return [
            (0, self._header()),
            (layout.IDENTITY_OFFSET, self._identity_text()),
            (layout.THREADS_OFFSET, threads),
            (layout.GROUPS_OFFSET, groups),
            (layout.CHANNELS_OFFSET, channels),
            *ring,
            (layout.HEAP_OFFSET, bytes(self._heap)),
            (layout.DYNAMIC_OFFSET, self._dynamic(location)),
        ]

    # -- who it is -----------------------------------------------------------------------------

    def _header(self) -> bytes:
        rank = self._rank
        return layout.HEADER.pack(
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

    def _identity_text(self) -> bytes:
        known = {"host": self._rank.host, "job": self._rank.job, **self._identity}
        text = json.dumps(known).encode()[: layout.IDENTITY_BYTES - 1]
        return text.ljust(layout.IDENTITY_BYTES, b"\0")

    def _dynamic(self, location: int) -> bytes:
        rank = self._rank
        exiting_ns = rank.exiting_ns or rank.process.ended_ns or 0
        serial = rank.layer_serial
        return layout.DYNAMIC.pack(
            rank.heartbeat_ns,
            rank.calls,
            len(self._heap),
            int(rank.phase),
            0,
            rank.exit_code or 0,
            exiting_ns,
            serial,
            rank.free_threads,
            0,
            serial,
            location,
        )

    # -- texts ---------------------------------------------------------------------------------

    def _define(self, kind: Definition, value: object, key: object, room: int = 0) -> int:
        """The id of this text; 0 where there is no room for it. `key` None: it is like no other."""
        known = self._ids.get((kind, key)) if key is not None else None
        if known is not None:
            return known
        raw = json.dumps(value, separators=(",", ":"), default=str).encode()
        head = layout.DEFINITION
        room = room or layout.HEAP_BYTES - NOTES_BYTES
        if len(self._heap) + head.size + len(raw) > room:
            return 0
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        self._heap += head.pack(len(raw), int(kind), number) + raw
        if key is not None:
            self._ids[kind, key] = number
        return number

    def _site(self, site: CallSite | None) -> int:
        if site is None:
            return 0
        known = self._ids.get((Definition.SITE, site))
        if known is not None:
            return known
        row = [site.file, site.line, site.function, *([site.through] if site.through else [])]
        return self._define(Definition.SITE, row, site)

    def _write_creation(self, creation: Any) -> None:
        record = {
            "index": creation.index,
            "name": creation.group[0],
            "incarnation": creation.group[1],
            "ranks": rank_runs.packed(creation.ranks),
            "backend": creation.backend,
            "site": self._site(creation.site),
            "world_seq": creation.world_seq,
            "t_ns": creation.time_ns,
        }
        self._define(Definition.CREATION, record, None)

    # -- slots ---------------------------------------------------------------------------------

    def _write_groups(self) -> bytes:
        found = bytearray()
        for key in self._groups:
            group = self._rank.groups[key]
            record = {
                "name": key[0],
                "incarnation": key[1],
                "desc": group.desc,
                "ranks": rank_runs.packed(group.ranks),
                "backend": group.backend,
                "timeout_s": group.timeout_s,
            }
            row = layout.GROUP.pack(
                self._define(Definition.GROUP, record, None),
                int(group.state),
                group.issued,
                0,
                group.chain,
                group.exact,
                group.balance,
                0 if group.last is None else group.last + 1,
            )
            found += row.ljust(layout.GROUP_BYTES, b"\0")
        return bytes(found)

    def _write_channels(self) -> bytes:
        found = bytearray()
        for channel in self._rank.channels[: layout.CHANNELS]:
            record = {
                "group": self._groups.get(channel.group, 0),
                "name": channel.group[0],
                "incarnation": channel.group[1],
                "op": channel.op,
                "peer": channel.peer,
                "tag": channel.tag,
            }
            found += layout.CHANNEL.pack(
                self._define(Definition.CHANNEL, record, None),
                channel.issued,
                channel.chain,
                0 if channel.last is None else channel.last + 1,
            )
        return bytes(found)

    def _threads(self) -> bytes:
        found = bytearray()
        for at, wait in enumerate(self._rank.waits[: layout.THREADS]):
            detail = 0
            if wait.detail:
                detail = self._define(Definition.DETAIL, dict(wait.detail), None)
            row = layout.THREAD.pack(
                1,
                int(wait.activity),
                0,
                0,
                wait.thread,
                0 if wait.call is None else wait.call + 1,
                detail,
                self._site(wait.site),
                wait.since_ns,
                wait.serial + at,
                1,
            )
            found += row.ljust(layout.THREAD_BYTES, b"\0")
        return bytes(found)

    def _ring(self) -> list[tuple[int, bytes]]:
        """The calls in one piece, or in two where the ring comes round."""
        before: dict[object, int] = {}
        rows: list[tuple[int, bytes]] = []
        for call in self._calls:
            signature = call.signature
            where: object = call.group
            channel = layout.NO_CHANNEL
            if signature.peer is not None:
                where = (call.group, signature.op, signature.peer, signature.tag)
                channel = self._channels.get(where, layout.NO_CHANNEL)
            known = self._ids.get((Definition.SIGNATURE, signature))
            if known is None:
                value = json.loads(signature.to_json())
                known = self._define(Definition.SIGNATURE, value, signature)
            mark = call.number + 1
            rows.append(
                (
                    call.number % layout.RING,
                    layout.SLOT.pack(
                        mark,
                        self._groups.get(call.group, layout.GROUPS),
                        0,
                        OP_CODES.get(signature.op, len(OP_CODES)),
                        int(call.state),
                        _flags(call),
                        known,
                        self._site(call.site),
                        before.get(where, 0) & 0xFFFFFFFF,
                        channel,
                        call.seq,
                        call.chain,
                        call.exact,
                        call.balance,
                        call.issued_ns,
                        call.started_ns if call.state is not CallState.ISSUED else 0,
                        call.completed_ns,
                        mark,
                    ),
                )
            )
            before[where] = mark
        rows.sort(key=lambda row: row[0])
        pieces: list[tuple[int, bytearray]] = []
        for at, data in rows:
            if pieces and pieces[-1][0] + len(pieces[-1][1]) // layout.SLOT.size == at:
                pieces[-1][1].extend(data)
            else:
                pieces.append((at, bytearray(data)))
        return [(layout.RING_OFFSET + at * layout.SLOT.size, bytes(data)) for at, data in pieces]


def _flags(call: Call) -> int:
    return (layout.ASYNC_FLAG if call.is_async else 0) | (layout.AGREES_FLAG if call.agrees else 0)


def _key_of(channel: Channel) -> tuple[GroupKey, str, int, int]:
    return (channel.group, channel.op, channel.peer, channel.tag)
