"""Writes a rank's calls and waits. One process writes a file; its threads share this writer.

This is the hot path: `begin` and one of `finish`, `hand_over` and `break_off` run with every call,
together about 1.5 µs, and only pack numbers into mapped memory. Everything with a text goes through
`define`, once. What a reader can find out from the ring is written nowhere else: see `layout`,
"Written once".

The interpreter switches threads only at calls and backward jumps. Between two of them nothing can
come, and that is all the locking there is: a lock would cost 0.2 µs. It adds, subtracts, multiplies
and compares integers in a fraction of the time that it takes for any other operation on them, which
is why nothing is shifted or masked here where that can be helped.

Of what each thread waits for, a call that it is in takes one word only, the wait for one that it
made before takes four; all else is written in full.
"""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from struct import Struct

from .. import layout
from ..layout import SEEN_IDLE, Activity, CallState, Role
from ..lines import mark_after
from ..signature import CHAIN_STEP, MASK
from .flight_file import FlightFile
from .slots import UNSETTLED as _UNSETTLED
from .slots import WRITTEN as _WRITTEN
from .slots import (
    CallDescription,
    CallOrigin,
    ChannelSlot,
    GroupSlot,
    LineSlot,
    Surprises,
    ThreadSlot,
)

_now = time.monotonic_ns
_ident = threading.get_ident

# The machine's own structs pack a third faster than "<" ones, into the same bytes: every field is
# aligned, and FlightFile refuses big-endian machines.
# A byte of padding is written as 0 at no cost, where a number 0 costs as much as any other.
_COMMON = Struct("@HHBBBxII")
_pack_slot = Struct(f"@Q{_COMMON.size}sIIQQQQQ16xQ").pack_into
_pack_wait = Struct("@" + layout.THREAD.format[1:]).pack_into

_RING = layout.RING
_RING_OFFSET = layout.RING_OFFSET
_SLOT_BYTES = layout.SLOT.size
_STATE_AT = layout.STATE_AT
_KEEP_EVERY = layout.RING // 8
_OLD = layout.RING // 2
_NO_PHASE = 1 << layout.PHASE_BITS
_NO_CHANNEL = layout.NO_CHANNEL
_ISSUED = int(CallState.ISSUED)
_FAILED = int(CallState.FAILED)
_NONE = int(Activity.NONE)
_IN_CALL = int(Activity.IN_CALL)
_STEP = CHAIN_STEP
_LOW_32 = 0xFFFFFFFF
_INVERSE = pow(CHAIN_STEP, -1, MASK + 1)
_PREVIOUS_FIELD = 8
_SITE_UNIT = 1 << 32
_PHASES = (1 << layout.PHASE_BITS) - 1
_MOST_PHASE = layout.MOST_PHASE
_MOST_OF_ONE = layout.SURPRISES // 4
_LEAST_EXPECTED = 16
"""Where more calls come from elsewhere than one in so many, once so many have, nothing of the
program's order can be told from them, and they would take the room of others."""
_MOST_WAITING = layout.THREADS
"""A signal's handler has raised in the thread whose turn it is."""
_SMALL = 1 << 29
"""To compare with a number of one digit costs a third of what it costs to mask any number."""

# Positions in 8-byte words, for the fields that are written one at a time.
_SLOT_WORDS = layout.SLOT.size // 8
_LAST_SLOT = (layout.RING - 1) * _SLOT_WORDS
_HEARTBEAT_WORD = layout.DYNAMIC_OFFSET // 8
_CALLS_WORD = layout.CALLS_AT // 8
_SERIAL_WORD = layout.SERIAL_AT // 8
_CALL_WORDS = slice(
    (layout.THREADS_OFFSET + layout.THREAD_CALL_AT) // 8,
    layout.GROUPS_OFFSET // 8,
    layout.THREAD_BYTES // 8,
)


class FlightWriter(FlightFile):
    """The flight record of this process."""

    def __init__(self, path: Path, *, role: Role = Role.UNKNOWN) -> None:
        super().__init__(path, role=role)
        self._next_serial = itertools.count(1).__next__
        self._threads: dict[int, ThreadSlot] = {}
        self._number_of_surprises = 0

    # -- calls ---------------------------------------------------------------------------------

    def begin(
        self, group: GroupSlot, call: CallDescription, place: CallOrigin, flags: int
    ) -> tuple[int, ThreadSlot]:
        """Record that a call is about to enter the backend, and that this thread is in it.

        Returns the call's number (from 0) and the thread's slot, for exactly one of `finish`,
        `hand_over` and `break_off`.
        """
        try:
            thread = self._threads[_ident()]
        except KeyError:
            thread = self.thread()
        # Half of the slot is as in the last call from there: packing it costs 0.1 µs.
        volatile = None
        if place.call is call and place.thread is thread and place.flags == flags:
            common = place.common
        else:
            common = _prepare(group, call, place, flags, thread)
            volatile = call.volatile
        now = _now()
        # Its number, its place in its group or channel, and the chains. From here to the end of
        # `_pack_slot` no other thread can come between: see the file's docstring.
        number = self._number
        self._number = mark = number + 1
        ring_word = self._next_slot
        self._next_slot = ring_word + _SLOT_WORDS if ring_word != _LAST_SLOT else 0
        latest = self._latest
        channel = call.channel
        if channel is None:
            owner: GroupSlot | ChannelSlot = group
            step = group.step
            seq = group.issued
            group.issued = seq + 1
            previous = group.last
            group.last = mark
            group.chain = chain = (group.chain * _STEP + call.agree) & MASK
            exact, balance = group.exact, group.balance
            if call.adds:
                if call.has_shapes:
                    group.exact = exact = (exact + call.exact * (2 * seq + 1)) & MASK
                if call.contribution:
                    group.balance = balance = (balance + call.contribution * (2 * seq + 1)) & MASK
            channel_index = _NO_CHANNEL
        else:
            owner = channel
            step = channel.step
            seq = channel.issued
            channel.issued = seq + 1
            previous = channel.last
            channel.last = mark
            channel.chain = chain = (channel.chain * _STEP + call.agree) & MASK
            exact = balance = 0
            channel_index = channel.index
        if latest is not owner:
            self._latest = owner
        # Where it comes from, if that is not what is expected.
        if step.place == place.place:
            owner.step = step.then
            surprised = None
        else:
            surprised = owner.surprises
            if surprised is not None and step is not _UNSETTLED:
                owner.step = _UNSETTLED
                surprised.due = seq
        _pack_slot(
            self._ring,
            ring_word * 8,
            mark,
            common,
            previous if previous < _SMALL else previous & _LOW_32,
            channel_index,
            seq,
            chain,
            exact,
            balance,
            now,
            mark,
        )
        # What is rare, or not needed for a further call of the same group.
        if latest is not owner and latest is not None:
            self._write_counts(latest)
        if channel is None and seq == group.checkpoint_at:
            group.checkpoint_at = seq + layout.CHECKPOINT_EVERY
            self._checkpoint(group.index, seq + 1, chain, exact, balance)
        if volatile is not None:
            self._write_volatile(number, volatile)
        if surprised is not None:
            self._surprised(owner, surprised, seq, place.place)
        if mark == self._keep_at:
            self._keep_at = mark + _KEEP_EVERY
            self._keep_old_waits()
        # The thread is in it: one word says so, unless it is in something else already.
        if thread.current or thread.nested:
            self.enter(_IN_CALL, mark, 0, place.site)
            self._words[_CALLS_WORD] = self._number
        else:
            thread.current = mark
            thread.ring_word = ring_word
            thread.word = word = mark * _NO_PHASE
            self._words[thread.call_word] = word
        return number, thread

    def _write_volatile(self, number: int, text: bytes) -> None:
        at = layout.VOLATILE_OFFSET + number % _RING * layout.VOLATILE_BYTES
        self._map[at : at + layout.VOLATILE_BYTES] = text[: layout.VOLATILE_BYTES].ljust(
            layout.VOLATILE_BYTES, b"\0"
        )

    def _checkpoint(self, group: int, issued: int, chain: int, exact: int, balance: int) -> None:
        index = issued // layout.CHECKPOINT_EVERY % layout.CHECKPOINTS
        at = layout.CHECKPOINTS_OFFSET + (
            (group * layout.CHECKPOINTS + index) * layout.CHECKPOINT.size
        )
        layout.CHECKPOINT.pack_into(self._map, at, issued, chain, exact, balance)

    def _surprised(self, owner: LineSlot, surprises: Surprises, seq: int, place: int) -> None:
        """The call came from a place that was not expected, or has followed one that did and is not
        on record yet: threads may come here in another order than that of their calls."""
        with self._lock:
            waiting = surprises.waiting
            waiting[seq] = place
            while surprises.due in waiting and owner.surprises is not None:
                self._settle(owner, surprises, surprises.due, waiting.pop(surprises.due))
                surprises.due += 1
                # No other thread comes between here.
                if owner.issued == surprises.due:
                    after = (surprises.due - surprises.base) % surprises.period
                    owner.step = surprises.steps[after]
            if len(waiting) > _MOST_WAITING:
                self._lose_lines(owner)

    def _settle(self, owner: LineSlot, surprises: Surprises, seq: int, place: int) -> None:
        predictor = surprises.predictor
        if surprises.dropped:
            surprises.dropped = False
            predictor.drop()
            kept = 0
        else:
            kept = seq - surprises.base
            if surprises.steps and surprises.steps[kept % surprises.period].place == place:
                return
        period = predictor.surprised(kept, place)
        surprises.expect(seq + 1)
        surprises.count += 1
        if surprises.count > max(_MOST_OF_ONE, seq // _LEAST_EXPECTED):
            self._lose_lines(owner)
            return
        self._number_of_surprises = mark = self._number_of_surprises + 1
        low = mark & _LOW_32
        layout.SURPRISE.pack_into(
            self._map,
            layout.SURPRISES_OFFSET + (mark - 1) % layout.SURPRISES * layout.SURPRISE.size,
            mark,
            seq,
            place,
            period,
            surprises.last,
            low,
        )
        self._words[layout.SURPRISES_AT // 8] = mark
        surprises.last = low
        surprises.mark = mark_after(surprises.mark, seq, self._place_keys.get(place, 0))
        count = surprises.count
        layout.LINES.pack_into(self._map, owner.lines_at, count, low, surprises.mark, count)

    def _lose_lines(self, owner: LineSlot) -> None:
        """Nothing is known from now on of where the calls come from."""
        owner.surprises = None
        none = layout.NO_LINES
        layout.LINES.pack_into(self._map, owner.lines_at, none, 0, 0, none)

    def hand_over(self, number: int, thread: ThreadSlot) -> None:
        """The backend has accepted the call, which goes on in the background; the thread leaves."""
        if thread.current == number + 1:
            self._started[thread.ring_word] = _now()
            thread.current = 0
            thread.word = word = thread.word + 1
            self._words[thread.call_word] = word
            return
        if self._number - number <= _RING:
            self._started[number % _RING * _SLOT_WORDS] = _now()
        self.leave(thread)

    def complete(self, number: int, thread: ThreadSlot) -> None:
        """`finish`, by the thread that has made the call and has been in it since."""
        if thread.current != number + 1:
            self.finish(number, thread)
            return
        self._completed[thread.ring_word] = _now()
        thread.current = 0
        thread.word = word = thread.word + 1
        self._words[thread.call_word] = word

    def finish(
        self,
        number: int,
        thread: ThreadSlot | None,
        started_ns: int = 0,
        completed_ns: int = 0,
    ) -> None:
        """The call is done: its result may be used; the thread that waited for it leaves.

        `thread`: None when nobody waited. `started_ns`: when it began, where that is known better
        than by `hand_over`; `completed_ns`: when it ended, if not now.
        """
        now = completed_ns or _now()
        if self._number - number <= _RING:  # else the ring has come round to its slot
            at = number % _RING * _SLOT_WORDS
            if started_ns:
                self._started[at] = started_ns
            self._completed[at] = now
        if thread is not None:
            # `leave_call`, without the cost of calling it.
            if thread.current == number + 1:
                thread.current = 0
                thread.word = word = thread.word + 1
                self._words[thread.call_word] = word
            else:
                self.leave(thread)

    def break_off(self, number: int, thread: ThreadSlot | None) -> None:
        """The call raised; the thread that waited for it leaves (None: nobody waited)."""
        now = _now()
        if self._number - number <= _RING:
            at = number % _RING
            self._ring[at * _SLOT_BYTES + _STATE_AT] = _FAILED
            self._completed[at * _SLOT_WORDS] = now
        if thread is not None:
            self.leave_call(thread, number + 1)

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
        surprises = place.surprises
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
        settled = place.step is not _UNSETTLED
        if surprises is not None and settled:
            if surprises.base == seq + 1:
                surprises.dropped, surprises.due = True, seq
                place.step = _UNSETTLED
            else:
                place.step = surprises.steps[(seq - surprises.base) % surprises.period]
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
        if surprises is not None and not settled:
            self._lose_lines(place)  # other threads are about to put theirs on record
        self._map[at + layout.FLAGS_IN_SLOT_AT] = row[5] | layout.REFUSED_FLAG
        return True

    def withdraw(self, group: GroupSlot, call: CallDescription | None) -> None:
        """The call that this thread was about to make is not made: the handler of a signal has
        raised first. It may be on record by then, or be about to be (`call` is None before it was
        described)."""
        if call is None:
            return
        thread = self.thread()
        mark = group.last if call.channel is None else call.channel.last
        number = mark - 1
        row = layout.SLOT.unpack_from(self._map, _RING_OFFSET + number % _RING * _SLOT_BYTES)
        begun = row[0] == row[17] == mark and row[2] == thread.index and not (row[15] or row[16])
        if mark and begun and self.take_back(number, group, call):
            self.break_off(number, None)
            if thread.current == mark or (thread.nested and thread.nested[-1][1] == mark):
                self.leave_call(thread, mark)

    def call_at(self, number: int) -> tuple[int, int] | None:
        """Op code and site id of a call that is still on record."""
        row = layout.SLOT.unpack_from(self._map, _RING_OFFSET + number % _RING * _SLOT_BYTES)
        return (row[3], row[7]) if row[0] == row[17] == number + 1 else None

    # -- heartbeat -----------------------------------------------------------------------------

    def group_of(self, number: int) -> tuple[int, bool]:
        """The index of the group in which this call was made, and whether it is a message; -1 when
        it is no longer on record."""
        at = _RING_OFFSET + number % _RING * _SLOT_BYTES
        row = layout.SLOT.unpack_from(self._map, at)
        return (row[1], row[9] != _NO_CHANNEL) if row[0] == number + 1 else (-1, False)

    @property
    def calls(self) -> int:
        """Calls issued so far."""
        return self._number

    def heartbeat(self, free_threads: int, serial: int, location: int) -> None:
        """The rank can still run Python: how many threads could act, counted at that serial, and
        the id of the main thread's call site."""
        layout.BEAT.pack_into(self._map, layout.BEAT_AT, free_threads, 0, serial, location)
        self._words[_HEARTBEAT_WORD] = _now()

    # -- what each thread waits for -----------------------------------------------------------

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
        thread = self.thread()
        if thread.current > 0:
            self._keep_wait(thread, thread.current)
        thread.nested.append((activity, call, detail, site))
        self._write_wait(thread, activity, 0, thread.native_id, call, detail, site)
        return thread

    def leave(self, thread: ThreadSlot) -> None:
        """The wait that the thread's last `enter` began is over."""
        nested = thread.nested
        nested.pop()
        if nested:
            activity, call, detail, site = nested[-1]
            self._write_wait(thread, activity, 0, thread.native_id, call, detail, site)
        else:
            thread.current = thread.at_rest
            self._map[thread.offset + layout.ACTIVITY_AT] = _NONE
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


def _prepare(
    group: GroupSlot, call: CallDescription, place: CallOrigin, flags: int, thread: ThreadSlot
) -> bytes:
    """Packs what the slots of such calls have in common, which the place has from now on, too:
    unless each of them has its signature's text to write, for which it must come here again."""
    written = flags if place.place else flags | layout.UNPLACED_FLAG
    common = _COMMON.pack(
        group.index, thread.index, call.op_code, _ISSUED, written, call.signature_id, place.site
    )
    # No other thread comes between these.
    place.call = call if call.volatile is None else None
    place.thread = thread
    place.flags = flags
    place.common = common
    return common
