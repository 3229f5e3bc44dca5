"""At level trace (TORCH_CPP_LOG_LEVEL=INFO, debug level DETAIL): each call is in the rank's log.

It stands where the data checks do, in front of them, so that it costs a call nothing when off.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from ..record.signature import Signature
from . import call_site, levels, rank_log
from .data_checks import After, Inspect
from .recorder import GroupRecord, Known

_groups: weakref.WeakSet[GroupRecord] = weakref.WeakSet()


def observe() -> None:
    """From now on the level switches this, too."""
    levels.on_detail(_switch_all)


def watch(record: GroupRecord) -> None:
    """Log the group's calls, in front of its checks of data, while the level says so."""
    _groups.add(record)
    _switch(record)


def _switch_all(_on: bool) -> None:
    for record in list(_groups):
        _switch(record)


def _switch(record: GroupRecord) -> None:
    traced = rank_log.file_level() == "trace"
    inspect = record.inspect
    if traced and not isinstance(inspect, _Logged):
        record.inspect = _Logged(record, inspect)
    elif not traced and isinstance(inspect, _Logged):
        record.inspect = inspect.checks


class _Logged:
    """Logs a call, and hands it to the checks of data, if there are any."""

    def __init__(self, record: GroupRecord, checks: Inspect | None) -> None:
        self._group = record.shown_name
        self.checks = checks

    def __call__(self, method: str, args: tuple[Any, ...], known: Known, seq: int) -> After | None:
        frame = call_site.find(sys._getframe(1))
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
        signature = Signature.from_json(known.text)
        fields: dict[str, Any] = {"group": self._group, "op": signature.op, "call": str(signature)}
        if known.channel is None:
            fields["seq"] = seq
        rank_log.write("call", "trace", **fields, **rank_log.at(place))
        return None if self.checks is None else self.checks(method, args, known, seq)
