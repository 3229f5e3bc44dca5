"""Which calls of several ranks belong together: a collective's, or a send and its receive."""

from __future__ import annotations

from collections.abc import Hashable

from .ops import POINT_TO_POINT
from .signature import ANY_SOURCE
from .snapshot import Call, GroupKey


def tie_of(rank: int, call: Call, group: GroupKey) -> tuple[Hashable, ...]:
    """What the calls that belong together have in common. `group`: what the call's is to be taken
    for. Of a receive from any source nobody knows what it belongs to."""
    signature = call.signature
    if signature.op not in POINT_TO_POINT:
        return ("collective", group, call.seq)
    if signature.peer in (None, ANY_SOURCE):
        return ("alone", group, rank, call.number)
    ends = (rank, signature.peer) if signature.op == "send" else (signature.peer, rank)
    return ("message", group, ends, signature.tag, call.seq)
