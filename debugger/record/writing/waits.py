"""Puts on record what each thread of the rank waits for right now.

A call that a thread is in takes one word only (see `writer`), the wait for one that it made before
takes four; all else is written in full.
"""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from struct import Struct

from .. import layout
from ..layout import SEEN_IDLE, Activity, Role
from ..signature import MASK
from .flight_file import FlightFile
from .slots import WRITTEN as _WRITTEN
from .slots import ThreadSlot

_now = time.monotonic_ns
_ident = threading.get_ident
_pack_wait = Struct("@" + layout.THREAD.format[1:]).pack_into
_RING = layout.RING
_RING_OFFSET = layout.RING_OFFSET
_SLOT_BYTES = layout.SLOT.size
_OLD = layout.RING // 2
_ACTIVITY_AT = layout.ACTIVITY_AT
_NONE = int(Activity.NONE)
_IN_CALL = int(Activity.IN_CALL)
_LOW_32 = 0xFFFFFFFF
_SITE_UNIT = 1 << 32
_PHASES = (1 << layout.PHASE_BITS) - 1
_MOST_PHASE = layout.MOST_PHASE
_CALLS_WORD = layout.CALLS_AT // 8
_SERIAL_WORD = layout.SERIAL_AT // 8
_CALL_WORDS = slice(
    (layout.THREADS_OFFSET + layout.THREAD_CALL_AT) // 8,
    layout.GROUPS_OFFSET // 8,
    layout.THREAD_BYTES // 8,
)


class FlightWaits(FlightFile):
    """A flight record whose threads can be entered, with what they wait for."""

    def __init__(self, path: Path, *, role: Role = Role.UNKNOWN) -> None:
        super().__init__(path, role=role)
        self._next_serial = itertools.count(1).__next__
        self._threads: dict[int, ThreadSlot] = {}

    def thread(self) -> ThreadSlot:
        """This thread's slot."""
        slot = self._threads.get(_ident())
        return slot if slot is not None else self._adopt(_ident(), threading.get_native_id())

    def _adopt(self, ident: int, native_id: int) -> ThreadSlot:
        with self._lock:
            slot = self._threads.get(ident)
            if slot is None:
                index, shared = self._thread_index()
                slot = self._threads[ident] = ThreadSlot(index, native_id, shared)
                self._write_wait(slot, _NONE, 0, native_id, 0, 0, 0)
            return slot

    def _thread_index(self) -> tuple[int, bool]:
        """A free slot, or one of a thread that has ended; further threads share the last one, and
        whether this is such a thread."""
        taken = {slot.index for slot in self._threads.values()}
        if len(taken) >= layout.THREADS:
            alive = {thread.ident for thread in threading.enumerate()}
            for ident in [ident for ident in self._threads if ident not in alive]:
                del self._threads[ident]
            taken = {slot.index for slot in self._threads.values()}
        free = next((i for i in range(layout.THREADS) if i not in taken), layout.THREADS - 1)
        return free, free == layout.THREADS - 1

    def enter_wait(self, mark: int, site: int) -> ThreadSlot:
        """This thread begins to wait for the call with this number + 1, which it is not in. Pair
        with `finish`, `break_off` or `leave_call`."""
        try:
            thread = self._threads[_ident()]
        except KeyError:
            thread = self.thread()
        word = thread.word
        if thread.current or thread.nested or word & _PHASES >= _MOST_PHASE:
            return self.enter(_IN_CALL, mark, 0, site)
        # The word comes last: from then on the rest is read, and was not before. A thread that has
        # made no call (its word is 0) is out of all of them, too.
        words = self._words
        at = thread.wait_word
        words[at] = mark
        words[at + 1] = site * _SITE_UNIT
        words[at + 2] = _now()
        thread.current = mark
        thread.word = word = (word or 1) + 1
        words[thread.call_word] = word
        return thread

    def wait_began(self, thread: ThreadSlot, mark: int) -> int:
        """Returns when this thread began its wait for the call with this number + 1, by
        time.monotonic_ns(); 0 where it is in something else."""
        return int(self._words[thread.wait_word + 2]) if thread.current == mark else 0

    def waits_since(self, thread: ThreadSlot, mark: int, began_ns: int) -> None:
        """The wait that this thread has just begun goes on with one that began then."""
        if thread.current == mark:
            self._words[thread.wait_word + 2] = began_ns

    def leave_call(self, thread: ThreadSlot, mark: int) -> None:
        """This thread is no longer in the call with this number + 1, or no longer waits for it."""
        if thread.current == mark:
            thread.current = 0
            thread.word = word = thread.word + 1
            self._words[thread.call_word] = word
        else:
            self.leave(thread)

    def enter(self, activity: int, call: int, detail: int, site: int) -> ThreadSlot:
        """This thread begins to wait. `call` is a call's number + 1 (0: none), `detail` the id of
        a definition. Pair with `leave`."""
        try:
            thread = self._threads[_ident()]
        except KeyError:
            thread = self.thread()
        if thread.current > 0:
            self._keep_wait(thread, thread.current)
        now = _now()
        serial = self._next_serial()
        thread.nested.append((activity, call, detail, site))
        # `_write_wait`, without the cost of calling it: every wait() comes here.
        thread.version = version = thread.version + 1 & _LOW_32
        _pack_wait(
            self._map,
            thread.offset,
            version,
            activity,
            0,
            0,
            thread.native_id,
            call,
            detail,
            site,
            now,
            serial,
            version,
        )
        self._words[_SERIAL_WORD] = serial
        return thread

    def _enter_within(self, mark: int, site: int) -> None:
        """This thread is in a call, where it was in something else before."""
        self.enter(_IN_CALL, mark, 0, site)
        self._words[_CALLS_WORD] = self._number

    def leave(self, thread: ThreadSlot) -> None:
        """The wait that the thread's last `enter` began is over."""
        nested = thread.nested
        nested.pop()
        if nested:
            activity, call, detail, site = nested[-1]
            self._write_wait(thread, activity, 0, thread.native_id, call, detail, site)
        else:
            thread.current = thread.at_rest
            self._map[thread.offset + _ACTIVITY_AT] = _NONE
            self._words[_SERIAL_WORD] = self._next_serial()

    def _keep_wait(self, thread: ThreadSlot, mark: int) -> None:
        """Put on record in full that the thread is in this call, if it still is: its one word says
        nothing to who comes when something lies within the call, or has overwritten its slot."""
        if thread.word & _PHASES:
            _, site, since_ns = layout.WAIT.unpack_from(self._map, thread.wait_word * 8)
        else:
            at = _RING_OFFSET + (mark - 1) % _RING * _SLOT_BYTES
            row = layout.SLOT.unpack_from(self._map, at)
            site, since_ns = row[7], row[14]
        nested = [(_IN_CALL, mark, 0, site)]
        serial = self._next_serial()
        if thread.current == mark:  # no other thread comes between from here to `_pack_wait`
            thread.nested = nested
            thread.current = thread.at_rest
            thread.version = version = thread.version + 1 & _LOW_32
            thread.word = word = thread.word + 1
            self._words[thread.call_word] = word
            _pack_wait(
                self._map,
                thread.offset,
                version,
                _IN_CALL,
                0,
                0,
                thread.native_id,
                mark,
                0,
                site,
                since_ns,
                serial,
                version,
            )
            self._words[_SERIAL_WORD] = serial

    def _keep_old_waits(self) -> None:
        """The ring will come round to the slots of calls that threads are in for long."""
        for thread in list(self._threads.values()):
            mark = thread.current
            if 0 < mark <= self._number - _OLD:
                self._keep_wait(thread, mark)

    def infer(
        self, ident: int, native_id: int, call: int, site: int, sure: int = SEEN_IDLE
    ) -> None:
        """Another thread was seen idle below a call for which no wait was reported (0: no more);
        `sure`: how much of a guess that is (see `layout`).

        Only for a thread that is in no wait of its own.
        """
        slot = self._threads.get(ident) or self._adopt(ident, native_id)
        with self._lock:
            if not slot.nested and slot.current <= 0:
                slot.current = _WRITTEN if call else slot.at_rest
                activity = _IN_CALL if call else _NONE
                self._write_wait(slot, activity, sure, native_id, call, 0, site)

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
        now = _now()
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
            now,
            serial,
            version,
        )
        self._words[_SERIAL_WORD] = serial

    def waited_for(self) -> list[tuple[int, int]]:
        """Returns (thread, call) for each call that a thread is in or waits for, by threading's
        idents."""
        found = []
        for ident, slot in list(self._threads.items()):
            if slot.current > 0:
                found.append((ident, slot.current - 1))
            for activity, call, _, _ in list(slot.nested):
                if activity == _IN_CALL and call:
                    found.append((ident, call - 1))
        return found

    @property
    def serial(self) -> int:
        """Rises with every change of any thread's activity."""
        return (self._words[_SERIAL_WORD] + sum(self._words[_CALL_WORDS])) & MASK

    def is_waiting(self, ident: int) -> bool:
        """Whether the thread is in a wait that it announced itself."""
        slot = self._threads.get(ident)
        return slot is not None and (slot.current > 0 or bool(slot.nested))
