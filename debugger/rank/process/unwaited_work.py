"""Handles that the program dropped, or kept to its end, while their calls were not complete.

A send or a receive cannot tell before wait() whether it is complete: of those only dropped handles
count.

Nobody can tell when the result of such a call may be used, and nobody hears of its failure. Each
line is put on record once, and again with the count of its handles when the program ends.
"""

from __future__ import annotations

import threading

from ...record.notes import UnwaitedWorkNote
from ...record.ops import OP_NAMES, POINT_TO_POINT
from ..group import outstanding
from ..record.recorder import Recorder

Key = tuple[int, int, bool]
"""Op, line, and whether the handles were kept to the end."""


class UnwaitedWork:
    """The handles of this process that are dropped without a wait."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: dict[tuple[Key, int], tuple[int, int]] = {}
        """Dropped handles of calls that a barrier may yet complete, by line and group: how many,
        and the number of the last one. The barrier of gloo, tcp and mpi waits for all calls before
        it, and a function that drops handles and comes to a barrier relies on that; what another
        one has done meanwhile, nobody knows."""
        self._counts: dict[Key, int] = {}
        self._noted: dict[Key, int] = {}
        self._lock = threading.RLock()
        """The heartbeat's thread looks, and so does the one that destroys a group."""

    def report(self, over: bool = False) -> None:
        """Put the lines on record that were not known before. `over`: no barrier is to come."""
        with self._lock:
            while outstanding.unwaited:
                number = outstanding.unwaited.popleft()
                group, message = self._recorder.writer.group_of(number)
                if message or group not in outstanding.barriers:
                    self._count(number, kept=False)
                else:
                    self._hold(number, group)
            if over:
                for (key, group), (count, last) in self._held.items():
                    if last > self._barrier_of(key[1], group):
                        self._counts[key] = self._counts.get(key, 0) + count
                self._held.clear()
            for key in self._counts.keys() - self._noted.keys():
                self._note(key)

    def last_report(self, ended_well: bool) -> None:
        """The program has ended: what is still under way was never waited for. Not so where it has
        failed, for then nobody came to wait."""
        if ended_well:
            self.report(over=True)
            for number in outstanding.pending():
                self._count(number, kept=True)
            for key, count in self._counts.items():
                if self._noted.get(key) != count:
                    self._note(key)
        outstanding.forget()  # no handle may be dropped while the interpreter is finalised

    def _count(self, number: int, kept: bool) -> None:
        call = self._recorder.writer.call_at(number)
        if call is not None and not (kept and OP_NAMES[call[0]] in POINT_TO_POINT):
            key = (*call, kept)
            self._counts[key] = self._counts.get(key, 0) + 1

    def _hold(self, number: int, group: int) -> None:
        call = self._recorder.writer.call_at(number)
        if call is None:
            return
        barrier = self._barrier_of(call[1], group)
        if number < barrier:
            return
        key = ((*call, False), group)
        count, last = self._held.get(key, (0, -1))
        self._held[key] = (count + 1 if last > barrier else 1, number)

    def _barrier_of(self, site: int, group: int) -> int:
        """The last barrier that the function of this line has come to; -1 for none."""
        return outstanding.barriers.get(group, {}).get(self._recorder.function_of(site), -1)

    def _note(self, key: Key) -> None:
        op_code, site, kept = key
        count = self._noted[key] = self._counts[key]
        op = OP_NAMES[op_code]
        self._recorder.note(UnwaitedWorkNote(op, count, kept), f"{op} was not waited for", site)
