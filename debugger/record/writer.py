"""Writes a rank's flight record. One process writes a file; its threads share this writer.

The hot path (`begin`, `started`, `completed`, `enter`, `leave`) costs about a microsecond a call:
it only packs numbers into mapped memory. Everything with a text goes through `define`, once.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import threading
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from . import layout
from .layout import Activity, CallState, Definition, GroupState, Phase, Role
from .signature import MASK

_now = time.monotonic_ns
_ident = threading.get_ident
_pack_u64 = layout.U64.pack_into
_pack_slot = layout.SLOT.pack_into
_pack_times = layout.TIMES.pack_into
_pack_wait = layout.THREAD.pack_into
_pack_group_counts = layout.GROUP_COUNTS.pack_into
_pack_channel_counts = layout.CHANNEL_COUNTS.pack_into
_RING = layout.RING
_RING_OFFSET = layout.RING_OFFSET
_STATE_AT = layout.STATE_AT
_STARTED_AT = layout.STARTED_AT
_COMPLETED_AT = layout.COMPLETED_AT
_SERIAL_AT = layout.SERIAL_AT
_CALLS_AT = layout.CALLS_AT
_ACTIVITY_AT = layout.ACTIVITY_AT
_GROUP_COUNTS_AT = layout.GROUP_COUNTS_AT
_GROUP_COMPLETED_AT = layout.GROUP_COMPLETED_AT
_CHANNEL_COUNTS_AT = layout.CHANNEL_COUNTS_AT
_CHECKPOINT_EVERY = layout.CHECKPOINT_EVERY
_NO_CHANNEL = layout.NO_CHANNEL
_ISSUED = int(CallState.ISSUED)
_STARTED = int(CallState.STARTED)
_COMPLETED = int(CallState.COMPLETED)
_FAILED = int(CallState.FAILED)
_SLOT_BYTES = layout.SLOT.size
_MULTIPLIER = 0x9E3779B97F4A7C15
_ADDEND = 0x7F4A7C15


class GroupSlot:
    """A group's place in the record, and the running values that the writer keeps for it."""

    __slots__ = ("balance", "chain", "completed", "exact", "index", "issued", "last", "offset")

    def __init__(self, index: int) -> None:
        self.index = index
        self.offset = layout.GROUPS_OFFSET + index * layout.GROUP_BYTES
        self.issued = self.completed = 0
        self.chain = self.exact = self.balance = 0
        self.last = 0


class ChannelSlot:
    """A point-to-point channel's place in the record."""

    __slots__ = ("chain", "index", "issued", "last", "offset")

    def __init__(self, index: int) -> None:
        self.index = index
        self.offset = layout.CHANNELS_OFFSET + index * layout.CHANNEL.size
        self.issued = self.chain = self.last = 0


class ThreadSlot:
    """What one thread waits for: its place in the record, and a stack of its nested waits."""

    __slots__ = ("index", "native_id", "nested", "offset", "version")

    def __init__(self, index: int, native_id: int) -> None:
        self.index = index
        self.native_id = native_id
        self.offset = layout.THREADS_OFFSET + index * layout.THREAD_BYTES
        self.version = 0
        self.nested: list[tuple[int, int, int, int]] = []


class FlightWriter:
    """The flight record of this process.

    Raises OSError when the file cannot be made or allocated; after that no method raises for
    lack of room: texts that do not fit become id 0 ("unknown").
    """

    def __init__(self, path: Path, *, role: Role = Role.UNKNOWN) -> None:
        self.path = path
        self.detached = False
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, layout.FILE_BYTES)
            self._map = mmap.mmap(descriptor, layout.FILE_BYTES)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        self.rank = -1
        self._role = role
        self._started_ns = _now()
        self._start_ticks = _process_start_ticks()
        self._world_size = self._local_rank = -1
        self._restart_count = 0
        self._lock = threading.RLock()
        self._number = 0
        self._next_serial = itertools.count(1).__next__
        self._serial = 0
        self._heap_used = 0
        self._ids: dict[tuple[int, Hashable], int] = {}
        self._counts: dict[int, int] = {}
        self._next_group = 0
        self._free_groups: list[int] = []
        self._next_channel = 0
        self._threads: dict[int, ThreadSlot] = {}
        self._group_slots: dict[int, GroupSlot] = {}
        self._write_header()
        self.phase(Phase.RUNNING)

    # -- who this is ---------------------------------------------------------------------------

    def identify(self, identity: Mapping[str, Any]) -> None:
        """Put the free-form identity (host, job, command line, versions) on record."""
        text = json.dumps(identity).encode()[: layout.IDENTITY_BYTES - 1]
        start = layout.IDENTITY_OFFSET
        self._map[start : start + layout.IDENTITY_BYTES] = text.ljust(layout.IDENTITY_BYTES, b"\0")

    def claim(self, rank: int, world_size: int, local_rank: int, restart_count: int) -> None:
        """Say which rank this is."""
        self.rank, self._world_size = rank, world_size
        self._local_rank, self._restart_count = local_rank, restart_count
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
            0,
            self._started_ns,
            time.time_ns() - _now(),
            threading.main_thread().native_id or 0,
            self._start_ticks,
        )

    def phase(self, phase: Phase, exit_code: int = 0) -> None:
        """Say how far the process has come; from `EXITING` on with the exit code it will have."""
        self._map[layout.PHASE_AT] = int(phase)
        exiting_ns = _now() if phase >= Phase.EXITING else 0
        layout.EXIT.pack_into(self._map, layout.EXIT_AT, exit_code, exiting_ns)

    def detach(self) -> None:
        """In a forked child: the file is the parent's, so write to private memory from now on."""
        self._map = mmap.mmap(-1, layout.FILE_BYTES)
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
            if used + head.size + len(raw) > layout.HEAP_BYTES:
                self._map[layout.FLAGS_AT] |= layout.HEAP_FULL_FLAG
                return 0
            number = self._counts.get(int(kind), 0) + 1
            self._counts[int(kind)] = number
            at = layout.HEAP_OFFSET + used
            head.pack_into(self._map, at, len(raw), int(kind), number)
            self._map[at + head.size : at + head.size + len(raw)] = raw
            self._heap_used = used + head.size + len(raw)
            _pack_u64(self._map, layout.HEAP_USED_AT, self._heap_used)
            self._ids[known] = number
            return number

    @property
    def heap_half_full(self) -> bool:
        """From here on signatures go to the volatile area, so that groups and notes find room."""
        return self._heap_used > layout.HEAP_BYTES // 2

    def note(self, kind: str, message: str, **data: Any) -> None:
        """Put an event on record, with the time now."""
        record = {"kind": kind, "t_ns": _now(), "message": message[:4000], **data}
        self.define(Definition.NOTE, json.dumps(record, default=str), key=(kind, _now()))

    def _add(self, kind: Definition, record: Mapping[str, Any]) -> int:
        return self.define(kind, json.dumps(record), key=(id(self), self._counts.get(int(kind), 0)))

    # -- groups and channels -------------------------------------------------------------------

    def add_group(self, record: Mapping[str, Any]) -> GroupSlot | None:
        """A place for a new group; None when all are in use (its calls are then not recorded)."""
        with self._lock:
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
            definition = self._add(Definition.GROUP, record)
            layout.GROUP.pack_into(
                self._map, slot.offset, definition, int(GroupState.CREATING), 0, 0, 0, 0, 0, 0
            )
            self._group_slots[index] = slot
            return slot

    def group_state(self, slot: GroupSlot, state: GroupState) -> None:
        """Say that a group is ready for use, or destroyed (its place may be used again)."""
        with self._lock:
            self._map[slot.offset + layout.GROUP_STATE_AT] = int(state)
            if state is GroupState.DESTROYED and slot.index not in self._free_groups:
                self._free_groups.append(slot.index)

    def add_creation(self, record: Mapping[str, Any]) -> None:
        """Put a group creation, in which every rank must take part, on record."""
        self._add(Definition.CREATION, record)

    def add_channel(self, record: Mapping[str, Any]) -> ChannelSlot | None:
        """A place for a new point-to-point channel; None when all are in use."""
        with self._lock:
            if self._next_channel >= layout.CHANNELS:
                return None
            slot = ChannelSlot(self._next_channel)
            self._next_channel += 1
            definition = self._add(Definition.CHANNEL, record)
            layout.CHANNEL.pack_into(self._map, slot.offset, definition, 0, 0, 0)
            return slot

    # -- calls ---------------------------------------------------------------------------------

    def begin(
        self,
        group: GroupSlot,
        op_code: int,
        signature: int,
        site: int,
        agree: int,
        exact: int,
        contribution: int,
        flags: int,
        channel: ChannelSlot | None = None,
        volatile: bytes | None = None,
    ) -> int:
        """Record that a call is about to enter the backend; returns its number (from 0)."""
        with self._lock:
            number = self._number
            self._number = number + 1
            mark = number + 1
            if channel is None:
                seq = group.issued
                group.issued = issued = seq + 1
                group.chain = chain = ((group.chain ^ agree) * _MULTIPLIER + _ADDEND) & MASK
                group.exact = exact = ((group.exact ^ exact) * _MULTIPLIER + _ADDEND) & MASK
                balance = group.balance
                if contribution:
                    group.balance = balance = (balance + contribution * (2 * seq + 1)) & MASK
                previous, group.last = group.last, mark
                channel_index = _NO_CHANNEL
            else:
                seq = channel.issued
                channel.issued = seq + 1
                channel.chain = chain = ((channel.chain ^ agree) * _MULTIPLIER + _ADDEND) & MASK
                exact = balance = 0
                previous, channel.last = channel.last, mark
                channel_index = channel.index
            thread = self._threads.get(_ident())
            _pack_slot(
                self._map,
                _RING_OFFSET + (number % _RING) * _SLOT_BYTES,
                mark,
                group.index,
                0 if thread is None else thread.index,
                op_code,
                _ISSUED,
                flags,
                signature,
                site,
                previous & 0xFFFFFFFF,
                channel_index,
                seq,
                chain,
                exact,
                balance,
                _now(),
                0,
                0,
                mark,
            )
            if volatile is not None:
                at = layout.VOLATILE_OFFSET + (number % _RING) * layout.VOLATILE_BYTES
                self._map[at : at + layout.VOLATILE_BYTES] = volatile[
                    : layout.VOLATILE_BYTES
                ].ljust(layout.VOLATILE_BYTES, b"\0")
            if channel is None:
                if issued % _CHECKPOINT_EVERY == 0:
                    self._checkpoint(group)
                _pack_group_counts(
                    self._map,
                    group.offset + _GROUP_COUNTS_AT,
                    issued,
                    group.completed,
                    chain,
                    exact,
                    balance,
                    mark,
                )
            else:
                _pack_channel_counts(
                    self._map, channel.offset + _CHANNEL_COUNTS_AT, seq + 1, chain, mark
                )
            _pack_u64(self._map, _CALLS_AT, mark)
            return number

    def _checkpoint(self, group: GroupSlot) -> None:
        index = group.issued // _CHECKPOINT_EVERY % layout.CHECKPOINTS
        at = layout.CHECKPOINTS_OFFSET + (
            (group.index * layout.CHECKPOINTS + index) * layout.CHECKPOINT.size
        )
        layout.CHECKPOINT.pack_into(
            self._map, at, group.issued, group.chain, group.exact, group.balance
        )

    def started(self, number: int) -> None:
        """The backend has accepted the call, which goes on in the background."""
        if self._number - number <= _RING:
            at = _RING_OFFSET + (number % _RING) * _SLOT_BYTES
            self._map[at + _STATE_AT] = _STARTED
            _pack_u64(self._map, at + _STARTED_AT, _now())

    def completed(self, number: int, group: GroupSlot | None, started_ns: int = 0) -> None:
        """The call is done: its result may be used. `group` is None for point-to-point calls.

        `started_ns`: when the backend accepted it, where `started` was not called.
        """
        if group is not None:
            group.completed += 1
            _pack_u64(self._map, group.offset + _GROUP_COMPLETED_AT, group.completed)
        if self._number - number <= _RING:
            at = _RING_OFFSET + (number % _RING) * _SLOT_BYTES
            self._map[at + _STATE_AT] = _COMPLETED
            if started_ns:
                _pack_times(self._map, at + _STARTED_AT, started_ns, _now())
            else:
                _pack_u64(self._map, at + _COMPLETED_AT, _now())

    def failed(self, number: int) -> None:
        """The call raised."""
        if self._number - number <= _RING:
            at = _RING_OFFSET + (number % _RING) * _SLOT_BYTES
            self._map[at + _STATE_AT] = _FAILED
            _pack_u64(self._map, at + _COMPLETED_AT, _now())

    # -- waits ---------------------------------------------------------------------------------

    def thread(self) -> ThreadSlot:
        """This thread's slot."""
        slot = self._threads.get(_ident())
        return slot if slot is not None else self._adopt(_ident(), threading.get_native_id())

    def _adopt(self, ident: int, native_id: int) -> ThreadSlot:
        with self._lock:
            slot = self._threads.get(ident)
            if slot is None:
                slot = self._threads[ident] = ThreadSlot(self._thread_index(), native_id)
            return slot

    def _thread_index(self) -> int:
        """A free slot, or one of a thread that has ended; further threads share the last one."""
        taken = {slot.index for slot in self._threads.values()}
        if len(taken) >= layout.THREADS:
            alive = {thread.ident for thread in threading.enumerate()}
            for ident in [ident for ident in self._threads if ident not in alive]:
                del self._threads[ident]
            taken = {slot.index for slot in self._threads.values()}
        return next((i for i in range(layout.THREADS) if i not in taken), layout.THREADS - 1)

    def enter(self, activity: int, call: int, detail: int, site: int) -> ThreadSlot:
        """This thread begins to wait. `call` is a call's number + 1 (0: none), `detail` the id of
        a definition. Pair with `leave`."""
        slot = self._threads.get(_ident())
        if slot is None:
            slot = self.thread()
        slot.nested.append((activity, call, detail, site))
        self._write_wait(slot, activity, 0, slot.native_id, call, detail, site)
        return slot

    def leave(self, slot: ThreadSlot) -> None:
        """The wait that the thread's last `enter` began is over."""
        nested = slot.nested
        nested.pop()
        if nested:
            activity, call, detail, site = nested[-1]
            self._write_wait(slot, activity, 0, slot.native_id, call, detail, site)
        else:
            self._map[slot.offset + _ACTIVITY_AT] = 0
            self._serial = serial = self._next_serial()
            _pack_u64(self._map, _SERIAL_AT, serial)

    def infer(self, ident: int, native_id: int, call: int, site: int) -> None:
        """Another thread was seen idle below a call that nobody told us it waits for (0: no more).

        Only for a thread that is in no wait of its own.
        """
        slot = self._threads.get(ident) or self._adopt(ident, native_id)
        with self._lock:
            if not slot.nested:
                activity = int(Activity.IN_CALL) if call else 0
                self._write_wait(slot, activity, 1, native_id, call, 0, site)

    def _write_wait(
        self,
        slot: ThreadSlot,
        activity: int,
        inferred: int,
        native_id: int,
        call: int,
        detail: int,
        site: int,
    ) -> None:
        self._serial = serial = self._next_serial()
        slot.version = version = slot.version + 1
        _pack_wait(
            self._map,
            slot.offset,
            version & 0xFFFFFFFF,
            activity,
            inferred,
            0,
            native_id,
            call,
            detail,
            site,
            _now(),
            serial,
            version & 0xFFFFFFFF,
        )
        _pack_u64(self._map, _SERIAL_AT, serial)

    # -- heartbeat -----------------------------------------------------------------------------

    @property
    def serial(self) -> int:
        """Changes with every change of any thread's activity."""
        return self._serial

    @property
    def calls(self) -> int:
        """Calls issued so far."""
        return self._number

    def heartbeat(self, free_threads: int, serial: int, location: int) -> None:
        """The rank can still run Python: how many threads could act, counted at that serial, and
        the id of the main thread's call site."""
        layout.BEAT.pack_into(self._map, layout.BEAT_AT, free_threads, 0, serial, location)
        _pack_u64(self._map, layout.DYNAMIC_OFFSET, _now())

    def is_waiting(self, ident: int) -> bool:
        """Whether the thread is in a wait that it announced itself."""
        slot = self._threads.get(ident)
        return slot is not None and bool(slot.nested)


def _process_start_ticks() -> int:
    """When this process began, in clock ticks since boot (field 22 of its stat); 0 elsewhere."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return 0
    return int(stat[stat.rindex(")") + 2 :].split()[19])
