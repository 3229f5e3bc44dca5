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
_counts: dict[Key, int] = {}
_noted: dict[Key, int] = {}
_lock = threading.RLock()
"""The heartbeat's thread looks, and so does the one that destroys a group."""


def report(recorder: Recorder) -> None:
    """Put the lines on record that were not known before."""
    with _lock:
        while outstanding.unwaited:
            _count(recorder, outstanding.unwaited.popleft(), kept=False)
        for key in _counts.keys() - _noted.keys():
            _note(recorder, key)


def last_report(recorder: Recorder) -> None:
    """The program has ended: what is still under way was never waited for."""
    if not (failed() or verdict_was_raised()):  # then nobody came to wait
        report(recorder)
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


def _note(recorder: Recorder, key: Key) -> None:
    op_code, site, kept = key
    count = _noted[key] = _counts[key]
    op = OPS[op_code]
    message = f"{op} was not waited for"
    recorder.note("unwaited_work", message, site, op=op, count=count, kept=kept)
