"""Handles that the program dropped, or kept to its end, while their calls were not complete.

A send or a receive cannot tell before wait() whether it is complete: of those only dropped handles
count.

Nobody can tell when the result of such a call may be used, and nobody hears of its failure. Each
line is put on record once, and again with the count of its handles when the program ends.
"""

from __future__ import annotations

import threading

from ...record.signature import OPS, POINT_TO_POINT
from ..group import outstanding
from ..record.recorder import Recorder
from .exits import failed
from .verdict import verdict_was_raised

Key = tuple[int, int, bool]
"""Op, line, and whether the handles were kept to the end."""
_held: dict[tuple[Key, int], tuple[int, int]] = {}
"""Dropped handles of calls that a barrier may yet complete, by line and group: how many, and the
number of the last one. The barrier of gloo, tcp and mpi waits for all calls before it, and a
function that drops handles and comes to a barrier relies on that; what another one has done
meanwhile, nobody knows."""
_counts: dict[Key, int] = {}
_noted: dict[Key, int] = {}
_lock = threading.RLock()
"""The heartbeat's thread looks, and so does the one that destroys a group."""


def report(recorder: Recorder, over: bool = False) -> None:
    """Put the lines on record that were not known before. `over`: no barrier is to come."""
    with _lock:
        while outstanding.unwaited:
            number = outstanding.unwaited.popleft()
            group, message = recorder.writer.group_of(number)
            if message or group not in outstanding.barriers:
                _count(recorder, number, kept=False)
            else:
                _hold(recorder, number, group)
        if over:
            for (key, group), (count, last) in _held.items():
                if last > _barrier_of(recorder, key[1], group):
                    _counts[key] = _counts.get(key, 0) + count
            _held.clear()
        for key in _counts.keys() - _noted.keys():
            _note(recorder, key)


def last_report(recorder: Recorder) -> None:
    """The program has ended: what is still under way was never waited for."""
    if not (failed() or verdict_was_raised()):  # then nobody came to wait
        report(recorder, over=True)
        for number in outstanding.pending():
            _count(recorder, number, kept=True)
        for key, count in _counts.items():
            if _noted.get(key) != count:
                _note(recorder, key)
    outstanding.forget()  # no handle may be dropped while the interpreter is finalised


def _count(recorder: Recorder, number: int, kept: bool) -> None:
    call = recorder.writer.call_at(number)
    if call is not None and not (kept and OPS[call[0]] in POINT_TO_POINT):
        key = (*call, kept)
        _counts[key] = _counts.get(key, 0) + 1


def _hold(recorder: Recorder, number: int, group: int) -> None:
    call = recorder.writer.call_at(number)
    if call is None:
        return
    barrier = _barrier_of(recorder, call[1], group)
    if number < barrier:
        return
    key = ((*call, False), group)
    count, last = _held.get(key, (0, -1))
    _held[key] = (count + 1 if last > barrier else 1, number)


def _barrier_of(recorder: Recorder, site: int, group: int) -> int:
    """The last barrier that the function of this line has come to; -1 for none."""
    return outstanding.barriers.get(group, {}).get(recorder.function_of(site), -1)


def _note(recorder: Recorder, key: Key) -> None:
    op_code, site, kept = key
    count = _noted[key] = _counts[key]
    op = OPS[op_code]
    message = f"{op} was not waited for"
    recorder.note("unwaited_work", message, site, op=op, count=count, kept=kept)
