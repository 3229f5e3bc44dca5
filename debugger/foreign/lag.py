"""Calls that pend in gloo's record and nowhere else.

gloo marks a call as over a moment after it is: in a dump that is written right then, as a rank does
at its end, the last ones still pend. A call which nobody ends before all are in it, and which
another rank has put away, is over there. One that has pended for longer is stuck: what the other
rank has put away has failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..record.ops import op_of
from .counts import Key, Own
from .flight_recorder import Dump, Entry

LAGS_NS = 10**9


def is_symmetric(entry: Entry) -> bool:
    """Whether nobody is over with such a call before all are in it."""
    return entry.seq is None or op_of(entry.signature.op).certain == "all"


def without_lag(
    dumps: Mapping[int, Dump], lives: Mapping[int, Mapping[Own, Key]]
) -> Mapping[int, Dump]:
    """The dumps with such calls marked as over."""
    pend: dict[tuple[Key, int | None], set[int]] = {}
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if _may_lag(dump, entry):
                at = (lives[rank][entry.pg_id, entry.group], entry.seq)
                pend.setdefault(at, set()).add(rank)
    if not pend:
        return dumps
    over: set[tuple[Key, int | None]] = {
        at
        for rank, dump in dumps.items()
        for entry in dump.entries
        if entry.done and entry.seq is not None and is_symmetric(entry)
        if (at := (lives[rank][entry.pg_id, entry.group], entry.seq)) in pend
    }
    lagging = {rank for at in over for rank in pend[at]}
    return {
        rank: dump if rank not in lagging else _settled(dump, lives[rank], over)
        for rank, dump in dumps.items()
    }


def _may_lag(dump: Dump, entry: Entry) -> bool:
    """Whether it pends, in a record that was written a moment after it was made."""
    if entry.done or entry.seq is None or entry.tells_completion:
        return False
    return 0 < dump.written_ns < entry.created_ns + LAGS_NS


def _settled(dump: Dump, lives: Mapping[Own, Key], over: set[tuple[Key, int | None]]) -> Dump:
    return replace(
        dump,
        entries=[
            entry._replace(done=True)
            if _may_lag(dump, entry) and (lives[entry.pg_id, entry.group], entry.seq) in over
            else entry
            for entry in dump.entries
        ],
    )
