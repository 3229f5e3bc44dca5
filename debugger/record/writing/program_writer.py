"""Writes what one planned rank does, all of it and in order: one line of JSON for each event.

A plan asks what every rank *would* do, from its first call to its last, so its record is no ring
and has no room that runs out. It is written by the same calls of the layer as a flight record,
whose running values it keeps in private memory. What is written survives the process.

A line is a list that begins with a word:

    ["rank", rank, world size, local rank, host, pid]
    ["site" | "signature" | "detail" | "environment" | "group" | "channel" | "creation" | "note",
     number, JSON]                                    definitions, numbered from 1 by their kind
    ["slot", index, group definition]                 a group has this place from now on
    ["kind", number, op code, signature, agree, exact, contribution]    a distinct call
    ["call", number, slot, kind, site, flags, thread, channel, stream]
    ["wait", call, site, stream]                      for an asynchronous call
    ["asked", call]                                   in vain, whether it is over
    ["came", call, source]                            who sent it, in the order of the group
    ["refused", call]                                 it counts as if it had not been made
    ["failed", call]                                  it raised, and the program goes on
    ["destroyed", slot, site]
    ["waits", activity, detail, site] ["left"]        for something that is no call
    ["undecided", site, what]
    ["enough"]                                        it ends, for it has made all steps asked for
    ["ended", exit code, signal] ["cut", why, site, waits, joins]     by whoever runs the ranks
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import threading
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from .. import layout
from ..layout import ASYNC_FLAG, UNPLACED_FLAG, Activity, Definition, GroupState
from .flight_file import described
from .slots import CallDescription, CallOrigin, ChannelSlot, GroupSlot, ThreadSlot
from .writer import FlightWriter

FOLDER = "programs"
"""Below the run directory; a rank's file is `<rank>.program`."""
FILES = "program"
WORDS = {kind: kind.name.lower() for kind in Definition}
_IN_CALL = int(Activity.IN_CALL)


def program_path(directory: Path, rank: int) -> Path:
    """Returns where the program of a rank lies in its run directory."""
    return directory / FOLDER / f"{int(rank)}.{FILES}"


class ProgramWriter(FlightWriter):
    """The program of this process, from which nothing is ever dropped.

    `find_line`: the id of the user's line at or above a frame, once somebody can tell.
    `find_stream`: the number of the device's stream that the program is in; below 0 where that is
    not known.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._kinds: dict[tuple[int, int, int, int, int], int] = {}
        self._open: set[int] = set()
        self.find_line: Callable[[FrameType | None], int] = _nowhere
        self.find_stream: Callable[[FrameType | None], int] = _nowhere
        self._of_thread = threading.local()
        self._thread_numbers = itertools.count(1)
        # Its file has its rank's name from the start: there is none that could be given another.
        super().__init__(path.with_suffix(".none"))

    def _made(self, path: Path) -> mmap.mmap:
        del path
        return mmap.mmap(-1, layout.FILE_BYTES)

    def put(self, *row: Any) -> None:
        """Write one line."""
        text = json.dumps(row, separators=(",", ":"), ensure_ascii=True, default=str)
        os.write(self._descriptor, f"{text}\n".encode())

    def detach(self) -> None:
        """Detaches a forked child: what it does is no part of the rank's program."""
        super().detach()
        self._descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    # -- who this is, and how far it has come --------------------------------------------------

    def claim(
        self,
        rank: int,
        world_size: int,
        local_rank: int,
        restart_count: int,
        max_restarts: int = 0,
    ) -> None:
        super().claim(rank, world_size, local_rank, restart_count, max_restarts)
        self.put("rank", rank, world_size, local_rank, os.uname().nodename, os.getpid())

    # -- definitions ---------------------------------------------------------------------------

    def define(self, kind: Definition, text: str, key: Hashable = None) -> int:
        known = (int(kind), text if key is None else key)
        with self._lock:
            number = self._ids.get(known)
            if number is None:
                number = self._counts[int(kind)] = self._counts.get(int(kind), 0) + 1
                self._ids[known] = number
                self.put(WORDS[kind], number, json.loads(text))
            return number

    @property
    def heap_half_full(self) -> bool:
        return False

    def add_group(self, record: Mapping[str, Any]) -> GroupSlot | None:
        with self._lock:
            definition = self._add(Definition.GROUP, described(record))
            slot = GroupSlot(self._next_group)
            self._next_group += 1
            self._group_slots[slot.index] = slot
            self.put("slot", slot.index, definition)
            return slot

    def group_state(self, slot: GroupSlot, state: GroupState) -> None:
        if self._group_slots.get(slot.index) is slot and state is GroupState.DESTROYED:
            del self._group_slots[slot.index]
            self.put("destroyed", slot.index, self.find_line(sys._getframe(1)))

    def add_channel(self, record: Mapping[str, Any]) -> ChannelSlot:
        with self._lock:
            slot = ChannelSlot(self._next_channel)
            self._next_channel += 1
            self._add(Definition.CHANNEL, record)
            return slot

    def _write_counts(self, slot: GroupSlot | ChannelSlot, latest: int = 0) -> None:
        """Writes nothing: the counts follow from the events."""

    def _checkpoint(self, group: int, issued: int, chain: int, exact: int, balance: int) -> None:
        """Nothing is ever overwritten here."""

    # -- events --------------------------------------------------------------------------------

    def begin(
        self, group: GroupSlot, call: CallDescription, place: CallOrigin, flags: int
    ) -> tuple[int, ThreadSlot]:
        number, thread = super().begin(group, call, place, flags)
        channel = -1 if call.channel is None else call.channel.index
        self.put(
            "call",
            number,
            group.index,
            self._kind(call),
            place.site,
            flags if place.place else flags | UNPLACED_FLAG,
            self._thread_number(),
            channel,
            self.find_stream(sys._getframe(1)),
        )
        if flags & ASYNC_FLAG:
            self._open.add(number)
        return number, thread

    def _thread_number(self) -> int:
        """Returns a number that is of this thread, and of no other one ever; a place in the record,
        or an ident, is used again by a later thread. The main thread's is 0."""
        known: int | None = getattr(self._of_thread, "number", None)
        if known is None:
            is_main = threading.current_thread() is threading.main_thread()
            known = self._of_thread.number = 0 if is_main else next(self._thread_numbers)
        return known

    def _kind(self, call: CallDescription) -> int:
        key = (call.op_code, call.signature_id, call.agree, call.exact, call.contribution)
        known = self._kinds.get(key)
        if known is None:
            with self._lock:  # another thread may use it as soon as it is known, and not before
                known = self._kinds.get(key)
                if known is None:
                    known = len(self._kinds) + 1
                    self.put("kind", known, *key)
                    self._kinds[key] = known
        return known

    def take_back(self, number: int, group: GroupSlot, call: CallDescription) -> bool:
        taken = super().take_back(number, group, call)
        if taken:
            self.put("refused", number)
        return taken

    def break_off(self, number: int, thread: ThreadSlot | None) -> None:
        self.put("failed", number)
        super().break_off(number, thread)

    def enter_wait(self, mark: int, site: int) -> ThreadSlot:
        self.waited(mark - 1, site)
        return super().enter_wait(mark, site)

    def finish(
        self,
        number: int,
        thread: ThreadSlot | None,
        started_ns: int = 0,
        completed_ns: int = 0,
    ) -> None:
        if number in self._open:
            self.waited(number, self.find_line(sys._getframe(1)))
        super().finish(number, thread, started_ns, completed_ns)

    def waited(self, number: int, site: int) -> None:
        """The program waits for this asynchronous call, if it has not done so before."""
        if number in self._open:
            self._open.discard(number)
            self.put("wait", number, site, self.find_stream(sys._getframe(1)))

    def came(self, source: int) -> None:
        """The receive from any source, in which this thread is, has taken a message of this rank of
        its group."""
        thread = self.thread()
        mark = thread.current if thread.current > 0 else 0
        mark = mark or next((row[1] for row in reversed(thread.nested) if row[0] == _IN_CALL), 0)
        if mark:
            self.put("came", mark - 1, source)

    def enter(self, activity: int, call: int, detail: int, site: int) -> ThreadSlot:
        if activity != _IN_CALL:
            self.put("waits", activity, detail, site)
        return super().enter(activity, call, detail, site)

    def leave(self, thread: ThreadSlot) -> None:
        if thread.nested and thread.nested[-1][0] != _IN_CALL:
            self.put("left")
        super().leave(thread)

    def undecided(self, site: int, what: str) -> None:
        """The program decides something by a value that a plan does not have."""
        self.put("undecided", site, what)


def _nowhere(frame: FrameType | None) -> int:
    del frame
    return 0
