"""Writes a rank's calls and waits. One process writes a file; its threads share this writer.

This is the hot path: `begin` and one of `finish`, `hand_over` and `break_off` run with every call,
together about 2 µs, and only pack numbers into mapped memory. Everything with a text goes through
`define`, once.
"""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from struct import Struct

from . import layout
from .layout import Activity, CallState, Role
from .refused_calls import RefusedCalls
from .signature import MASK
from .slots import CallDescription, ChannelSlot, GroupSlot, ThreadSlot

_now = time.monotonic_ns
_ident = threading.get_ident

# The machine's own structs pack a third faster than "<" ones, into the same bytes: every field is
# aligned, and FlightFile refuses big-endian machines.
_pack_slot = Struct("@" + layout.SLOT.format[1:]).pack_into
_pack_wait = Struct("@" + layout.THREAD.format[1:]).pack_into
_pack_group_counts = Struct("@" + layout.GROUP_COUNTS.format[1:]).pack_into
_pack_channel_counts = Struct("@" + layout.CHANNEL_COUNTS.format[1:]).pack_into

_RING = layout.RING
_RING_OFFSET = layout.RING_OFFSET
_SLOT_BYTES = layout.SLOT.size
_STATE_AT = layout.STATE_AT
_ACTIVITY_AT = layout.ACTIVITY_AT
_GROUP_COUNTS_AT = layout.GROUP_COUNTS_AT
_CHANNEL_COUNTS_AT = layout.CHANNEL_COUNTS_AT
_CHECKPOINT_EVERY = layout.CHECKPOINT_EVERY
_NO_CHANNEL = layout.NO_CHANNEL
_IN_CALL = int(Activity.IN_CALL)
_ISSUED = int(CallState.ISSUED)
_STARTED = int(CallState.STARTED)
_COMPLETED = int(CallState.COMPLETED)
_FAILED = int(CallState.FAILED)
_MULTIPLIER = 0x9E3779B97F4A7C15
_ADDEND = 0x7F4A7C15
_LOW_32 = 0xFFFFFFFF

# Positions in 8-byte words, for the fields that are written one at a time.
_CALLS_WORD = layout.CALLS_AT // 8
_SERIAL_WORD = layout.SERIAL_AT // 8
_STARTED_WORD = layout.STARTED_AT // 8
_COMPLETED_WORD = layout.COMPLETED_AT // 8
_GROUP_COMPLETED_WORD = layout.GROUP_COMPLETED_AT // 8
_HEARTBEAT_WORD = layout.DYNAMIC_OFFSET // 8


class FlightWriter(RefusedCalls):
    """The flight record of this process."""

    def __init__(self, path: Path, *, role: Role = Role.UNKNOWN) -> None:
        super().__init__(path, role=role)
        self._number = 0
        self._next_serial = itertools.count(1).__next__
        self._threads: dict[int, ThreadSlot] = {}

    # -- calls ---------------------------------------------------------------------------------

    def begin(
        self, group: GroupSlot, call: CallDescription, site: int, flags: int
    ) -> tuple[int, ThreadSlot]:
        """Record that a call is about to enter the backend, and that this thread is in it.

        Returns the call's number (from 0) and the thread's slot, for exactly one of `finish`,
        `hand_over` and `break_off`.
        """
        ident = _ident()
        thread = self._threads.get(ident)
        if thread is None:
            thread = self.thread()
        channel = call.channel
        mapped = self._map
        now = _now()
        # From here to `_pack_slot` nothing is called, so no other thread can come between: the
        # interpreter switches threads only at calls and backward jumps. A lock would cost 0.2 µs.
        number = self._number
        self._number = mark = number + 1
        if channel is None:
            seq = group.issued
            group.issued = seq + 1
            group.chain = chain = ((group.chain ^ call.agree) * _MULTIPLIER + _ADDEND) & MASK
            group.exact = exact = ((group.exact ^ call.exact) * _MULTIPLIER + _ADDEND) & MASK
            balance = group.balance
            if call.contribution:
                balance = (balance + call.contribution * (2 * seq + 1)) & MASK
                group.balance = balance
            previous = group.last
            group.last = mark
            channel_index = _NO_CHANNEL
        else:
            seq = channel.issued
            channel.issued = seq + 1
            channel.chain = chain = ((channel.chain ^ call.agree) * _MULTIPLIER + _ADDEND) & MASK
            exact = balance = 0
            previous = channel.last
            channel.last = mark
            channel_index = channel.index
        _pack_slot(
            mapped,
            _RING_OFFSET + number % _RING * _SLOT_BYTES,
            mark,
            group.index,
            thread.index,
            call.op_code,
            _ISSUED,
            flags,
            call.signature_id,
            site,
            previous & _LOW_32,
            channel_index,
            seq,
            chain,
            exact,
            balance,
            now,
            0,
            0,
            mark,
        )
        if call.volatile is not None:
            self._write_volatile(number, call.volatile)
        if channel is None:
            if not (seq + 1) % _CHECKPOINT_EVERY:
                self._checkpoint(group.index, seq + 1, chain, exact, balance)
            _pack_group_counts(
                mapped,
                group.offset + _GROUP_COUNTS_AT,
                seq + 1,
                group.completed,
                chain,
                exact,
                balance,
                mark,
            )
            if group.last != mark:
                self._write_counts_again(group)
        elif channel_index != _NO_CHANNEL:
            self._write_channel(channel)
        words = self._words
        words[_CALLS_WORD] = self._number
        thread.nested.append((_IN_CALL, mark, 0, site))
        serial = self._next_serial()
        thread.version = version = thread.version + 1 & _LOW_32
        _pack_wait(
            mapped,
            thread.offset,
            version,
            _IN_CALL,
            0,
            0,
            thread.native_id,
            mark,
            0,
            site,
            now,
            serial,
            version,
        )
        words[_SERIAL_WORD] = serial
        return number, thread

    def _write_volatile(self, number: int, text: bytes) -> None:
        at = layout.VOLATILE_OFFSET + number % _RING * layout.VOLATILE_BYTES
        self._map[at : at + layout.VOLATILE_BYTES] = text[: layout.VOLATILE_BYTES].ljust(
            layout.VOLATILE_BYTES, b"\0"
        )

    def _checkpoint(self, group: int, issued: int, chain: int, exact: int, balance: int) -> None:
        index = issued // _CHECKPOINT_EVERY % layout.CHECKPOINTS
        at = layout.CHECKPOINTS_OFFSET + (
            (group * layout.CHECKPOINTS + index) * layout.CHECKPOINT.size
        )
        layout.CHECKPOINT.pack_into(self._map, at, issued, chain, exact, balance)

    def _write_counts_again(self, group: GroupSlot) -> None:
        """Another thread's call in the group came between: what is written must be the latest."""
        at = group.offset + _GROUP_COUNTS_AT
        last = -1
        while last != group.last:
            last = group.last
            _pack_group_counts(
                self._map,
                at,
                group.issued,
                group.completed,
                group.chain,
                group.exact,
                group.balance,
                last,
            )

    def _write_channel(self, channel: ChannelSlot) -> None:
        at = channel.offset + _CHANNEL_COUNTS_AT
        last = -1
        while last != channel.last:
            last = channel.last
            _pack_channel_counts(self._map, at, channel.issued, channel.chain, last)

    def hand_over(self, number: int, thread: ThreadSlot) -> None:
        """The backend has accepted the call, which goes on in the background; the thread leaves."""
        self._end(number, _STARTED, _STARTED_WORD)
        self.leave(thread)

    def finish(
        self,
        number: int,
        thread: ThreadSlot | None,
        group: GroupSlot | None,
        started_ns: int = 0,
        completed_ns: int = 0,
    ) -> None:
        """The call is done: its result may be used; the thread that waited for it leaves.

        `thread`: None when nobody waited. `group`: None for point-to-point calls. `started_ns`:
        when it began, where that is known better than by `hand_over`; `completed_ns`: when it
        ended, if not now.
        """
        words = self._words
        if group is not None:
            group.completed += 1
            words[(group.offset >> 3) + _GROUP_COMPLETED_WORD] = group.completed
        if self._number - number <= _RING:
            at = _RING_OFFSET + number % _RING * _SLOT_BYTES
            self._map[at + _STATE_AT] = _COMPLETED
            if started_ns:
                words[(at >> 3) + _STARTED_WORD] = started_ns
            words[(at >> 3) + _COMPLETED_WORD] = completed_ns or _now()
        if thread is not None:
            nested = thread.nested
            if len(nested) > 1:
                self.leave(thread)
            else:  # `leave` itself, without the cost of calling it
                nested.pop()
                self._map[thread.offset + _ACTIVITY_AT] = 0
                words[_SERIAL_WORD] = self._next_serial()

    def break_off(self, number: int, thread: ThreadSlot | None) -> None:
        """The call raised; the thread that waited for it leaves (None: nobody waited)."""
        self._end(number, _FAILED, _COMPLETED_WORD)
        if thread is not None:
            self.leave(thread)

    def _end(self, number: int, state: int, time_word: int) -> None:
        if self._number - number <= _RING:
            at = _RING_OFFSET + number % _RING * _SLOT_BYTES
            self._map[at + _STATE_AT] = state
            self._words[(at >> 3) + time_word] = _now()

    def call_at(self, number: int) -> tuple[int, int] | None:
        """Op code and site id of a call that is still on record."""
        row = layout.SLOT.unpack_from(self._map, _RING_OFFSET + number % _RING * _SLOT_BYTES)
        return (row[3], row[7]) if row[0] == row[17] == number + 1 else None

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
        thread = self._threads.get(_ident())
        if thread is None:
            thread = self.thread()
        thread.nested.append((activity, call, detail, site))
        self._write_wait(thread, activity, 0, thread.native_id, call, detail, site)
        return thread

    def leave(self, thread: ThreadSlot) -> None:
        """The wait that the thread's last `begin` or `enter` began is over."""
        nested = thread.nested
        nested.pop()
        if nested:
            activity, call, detail, site = nested[-1]
            self._write_wait(thread, activity, 0, thread.native_id, call, detail, site)
        else:
            self._map[thread.offset + _ACTIVITY_AT] = 0
            self._words[_SERIAL_WORD] = self._next_serial()

    def infer(
        self, ident: int, native_id: int, call: int, site: int, on_stream: bool = False
    ) -> None:
        """Another thread was seen idle below a call that nobody told us it waits for (0: no more);
        `on_stream`: it stands still, while this call is under way on a GPU.

        Only for a thread that is in no wait of its own.
        """
        slot = self._threads.get(ident) or self._adopt(ident, native_id)
        with self._lock:
            if not slot.nested:
                activity = int(Activity.IN_CALL) if call else 0
                self._write_wait(slot, activity, 1 + on_stream, native_id, call, 0, site)

    def _write_wait(
        self,
        thread: ThreadSlot,
        activity: int,
        inferred: int,
        native_id: int,
        call: int,
        detail: int,
        site: int,
    ) -> None:
        serial = self._next_serial()
        thread.version = version = thread.version + 1 & _LOW_32
        _pack_wait(
            self._map,
            thread.offset,
            version,
            activity,
            inferred,
            0,
            native_id,
            call,
            detail,
            site,
            _now(),
            serial,
            version,
        )
        self._words[_SERIAL_WORD] = serial

    # -- heartbeat -----------------------------------------------------------------------------

    def waited_for(self) -> list[tuple[int, int]]:
        """(thread, call) for each call that a thread is in or waits for, by threading's idents."""
        return [
            (ident, call - 1)
            for ident, slot in list(self._threads.items())
            for activity, call, _, _ in list(slot.nested)
            if activity == _IN_CALL and call
        ]

    def group_of(self, number: int) -> tuple[int, bool]:
        """The index of the group in which this call was made, and whether it is a message; -1 when
        it is no longer on record."""
        at = _RING_OFFSET + number % _RING * _SLOT_BYTES
        row = layout.SLOT.unpack_from(self._map, at)
        return (row[1], row[9] != _NO_CHANNEL) if row[0] == number + 1 else (-1, False)

    @property
    def serial(self) -> int:
        """Changes with every change of any thread's activity."""
        return self._words[_SERIAL_WORD]

    @property
    def calls(self) -> int:
        """Calls issued so far."""
        return self._number

    def heartbeat(self, free_threads: int, serial: int, location: int) -> None:
        """The rank can still run Python: how many threads could act, counted at that serial, and
        the id of the main thread's call site."""
        layout.BEAT.pack_into(self._map, layout.BEAT_AT, free_threads, 0, serial, location)
        self._words[_HEARTBEAT_WORD] = _now()

    def is_waiting(self, ident: int) -> bool:
        """Whether the thread is in a wait that it announced itself."""
        slot = self._threads.get(ident)
        return slot is not None and bool(slot.nested)
