"""What findings from dumps have in common: where each rank stood, and what no dump holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..diagnosis.findings import CallIs, RankEvidence
from ..record.states import RankState
from .flight_recorder import Entry, libraries
from .trace import Trace
from .waits import Wait

OF_A_CALL = ("reduce_op", "root", "splits", "tag")
UNFORMED_GROUPS = "unformed_groups"
MESSAGES = "messages"
GLOO = "gloo"
MOST_EVIDENCE = 128


def not_in_record(trace: Trace) -> tuple[str, ...]:
    """What torch's flight recorder never holds, and gloo's none of: nothing of it is guessed."""
    of_gloo = GLOO in libraries(trace.dumps.values())
    return (*OF_A_CALL, UNFORMED_GROUPS, *([MESSAGES] if of_gloo else []))


def evident(first: Iterable[int], others: Iterable[int]) -> list[int]:
    """The ranks whose evidence is kept: those at fault before the others."""
    return list(dict.fromkeys([*first, *others]))[:MOST_EVIDENCE]


def standing(state: str, entry: Entry) -> RankEvidence:
    """A rank that stands in this call."""
    return RankEvidence(state, str(entry.signature), entry.site, entry.stack, CallIs.OBJECT)


def last_seen(trace: Trace, rank: int) -> RankEvidence:
    """Where a rank is that waits for nothing."""
    dump = trace.dumps.get(rank)
    if dump is None:
        return RankEvidence("no dump of it is here")
    if dump.unfinished:
        return standing("has issued a part of", dump.unfinished[0])
    if not dump.entries:
        return RankEvidence("has nothing pending")
    return standing("was last in", dump.entries[-1])


def of_waiting(trace: Trace, waits: Sequence[Wait]) -> dict[int, RankEvidence]:
    """The oldest pending calls of all who wait."""
    found: dict[int, RankEvidence] = {}
    for rank in evident((), (rank for wait in waits for rank in wait.waiting)):
        entry = trace.first_pending(rank)
        if entry is not None:
            found[rank] = standing(RankState.WAITS_IN, entry)
    return found


def victims(waits: Sequence[Wait], culprits: Iterable[int]) -> tuple[int, ...]:
    """Who waits and is not at fault."""
    accused = set(culprits)
    return tuple(sorted({rank for wait in waits for rank in wait.waiting} - accused))
