"""Handles that the program dropped, or never looked at, while their calls were not complete.

Nobody can tell when the result of such a call may be used, and nobody hears of its failure. Each
line is put on record once, and again with the count of its handles when the program ends.
"""

from __future__ import annotations

from ..record.signature import OPS
from . import outstanding
from .exceptions import failed
from .recorder import Recorder
from .verdict import verdict_was_raised

_counts: dict[tuple[int, int], int] = {}
"""By op and line: how many handles."""
_noted: dict[tuple[int, int], int] = {}


def report(recorder: Recorder) -> None:
    """Put the lines on record that were not known before."""
    while outstanding.unwaited:
        _count(recorder, outstanding.unwaited.popleft())
    for key in _counts.keys() - _noted.keys():
        _note(recorder, key)


def last_report(recorder: Recorder) -> None:
    """The program has ended: what is still under way was never waited for."""
    if not (failed() or verdict_was_raised()):  # then nobody came to wait
        report(recorder)
        for number in outstanding.pending():
            _count(recorder, number)
        for key, count in _counts.items():
            if _noted.get(key) != count:
                _note(recorder, key)
    outstanding.forget()  # no handle may be dropped while the interpreter is finalised


def _count(recorder: Recorder, number: int) -> None:
    call = recorder.writer.call_at(number)
    if call is not None:
        _counts[call] = _counts.get(call, 0) + 1


def _note(recorder: Recorder, key: tuple[int, int]) -> None:
    op_code, site = key
    _noted[key] = _counts[key]
    op = OPS[op_code]
    recorder.note("unwaited_work", f"{op} was not waited for", site, op=op, count=_counts[key])
