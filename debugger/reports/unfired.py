"""Why a fault did not happen, from what the rank has on record."""

from __future__ import annotations

from collections.abc import Iterable

from ..faults.actions import ACTIONS
from ..faults.plan import Fault, Moment, When
from ..record.snapshot import Group, Rank
from ..record.wording import counted

_ALL = 1 << 20


def why_not(fault: Fault, number: int, rank: Rank | None, namespaces: bool = False) -> str:
    """Tells what this rank, the `number`-th of the world, did instead of what the fault waited for.
    `namespaces`: as in `Plan`."""
    who = f"rank {number}"
    if rank is None:
        return f"no rank {number} was seen"
    backends = ACTIONS[fault.action].backends if fault.action in ACTIONS else ()
    used = sorted({group.backend for group in rank.groups.values() if group.backend})
    if not namespaces and backends and used and not set(used) & set(backends):
        return f"it works on {', '.join(backends)}, and {who} used {', '.join(used)}"
    moment = fault.moment
    match moment.when:
        case When.OP:
            kept = rank.history.recent(_ALL) if rank.history is not None else []
            made = sum(call.signature.op == moment.op for call in kept)
            overwritten = rank.history is not None and len(kept) < rank.calls
            least = "at least " if overwritten else ""
            count = _calls(made, f"{moment.op} call")
            return f"{who} made {least}{count}{_at_most(moment, made)}"
        case When.CALL:
            return f"{who} made {_calls(rank.calls, 'call')}{_at_most(moment, rank.calls)}"
        case When.SEQ:
            return _collectives(who, moment, rank.groups.values())
        case When.STEP:
            return f"{who} did not come to step {moment.first}"
        case When.TIME:
            return f"{who} had ended by then, or did nothing more that it could happen to"
        case When.FRAME:
            return f"{who} sent no frame {moment.first} on that link"


def _collectives(who: str, moment: Moment, groups: Iterable[Group]) -> str:
    named = [one for one in groups if not moment.group or moment.group in (one.key[0], one.desc)]
    if not named:
        return f"{who} was in no group {moment.group}".rstrip()
    most = max(named, key=lambda one: one.issued)
    made = _calls(most.issued, "collective")
    return f'{who} made {made} in group "{most.desc or most.key[0]}"{_at_most(moment, most.issued)}'


def _at_most(moment: Moment, count: int) -> str:
    """Tells that the moment came and the fault did not."""
    return ", and none that it could happen to" if count > moment.first else ""


def _calls(count: int, word: str) -> str:
    return counted(count, word) if count else f"no {word}"
