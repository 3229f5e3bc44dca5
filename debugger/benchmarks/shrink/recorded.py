"""The programs of a run's ranks, up to its verdict: what the simulation of a plan executes.

They are programs for gloo on the CPU, with one thread a rank, since that is what is to be written.
What the ranks did once the verdict was raised in them is left out: a rank that had not ended then
stays in the call that it was in, or, without one, in its own code.
"""

from __future__ import annotations

import signal
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import UsageError
from ...plan.program import Created, Destroyed, Ended, Event, Made, Program, Waited
from ...record.kinds import Kind, kind_of
from ...record.layout import RING, CallState, GroupState
from ...record.notes import ExceptionNote
from ...record.signature import Signature
from ...record.snapshot import Call, CallSite, Place, Rank
from ...record.wording import ranks_text
from ..replay.plan import Ending, Selection

BACKEND = "gloo"
_STAYS = Ending(kind_of("deadlock"))
"""Whatever was found, the calls at the end are kept as they were."""
_NOT_OF_GLOO = ("avg", "premul_sum")
_ENDS = {"early_exit": Ended(0), "rank_exception": Ended(1)}
"""How a culprit ends, by kind; one that died ends as is on record."""
_BY_CODE = frozenset({"rank_died", "rank_exception"})
"""Kinds that are no matter of calls, and that a line of code brings about all the same."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What the small program has to lead to: the finding of a run, as report.json has it.

    `parted`: the ranks' lines had parted before, or that is what was found, so it counts which
    calls come from one line. `until_ns`: when it was found (Unix time). `ends`: how ranks ended.
    """

    kind: Kind
    culprits: frozenset[int]
    cause: str
    parted: bool
    until_ns: int
    ends: Mapping[int, Ended] = field(default_factory=dict)

    @classmethod
    def of(cls, report: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Aim:
        """Reads the verdict of a run, or else its first warning that lines part. Raises UsageError
        where there is none, or where it is not about calls."""
        findings = report["findings"]
        found = [one for one in findings if one["severity"] == "error"]
        found += [one for one in findings if one["kind"] == "misaligned"]
        if not found:
            raise UsageError("nothing was found in this run that a smaller program could show")
        kind = kind_of(found[0]["kind"])
        if not (kind.by_calls or kind.name in _BY_CODE) or kind.name == "stalled":
            raise UsageError(
                f"the run ended with {kind.name}, whose cause is no call: what a smaller program "
                "would need for it is not on record"
            )
        times = [
            int(event["time_ns"])
            for event in events
            if event.get("finding") == kind.name and isinstance(event.get("time_ns"), int)
        ]
        return cls(
            kind,
            frozenset(found[0]["culprits"]),
            str(found[0].get("cause") or ""),
            kind.name == "misaligned" or found[0].get("parted_at") is not None,
            min(times, default=1 << 63),
            {
                int(rank): Ended(row["exit"]["code"], row["exit"]["signal"])
                for rank, row in report.get("ranks", {}).items()
                if any(one is not None for one in row["exit"].values())
            },
        )

    def said_of(self, culprits: Collection[int]) -> str:
        """`op_mismatch of rank 1`, for these culprits."""
        return f"{self.kind.name} of {ranks_text(sorted(culprits))}" if culprits else self.kind.name

    def is_met_by(self, other: Aim, culprits: Collection[int]) -> bool:
        """Whether `other`, of a run in which these are the ranks to blame, is the same."""
        return (
            other.kind is self.kind
            and other.culprits == frozenset(culprits)
            and (other.parted or not self.parted)
        )


def programs(ranks: Mapping[int, Rank], aim: Aim) -> dict[int, Program]:
    """Returns what each rank did, by rank. Raises UsageError where a rank's record is missing."""
    size = max((rank.world_size for rank in ranks.values()), default=0)
    missing = sorted(set(range(max(size, 1))) - set(ranks))
    if missing:
        raise UsageError(
            f"the record of {ranks_text(missing)} of {size} is missing: what they called is not "
            "known"
        )
    calls = {
        number: [
            call
            for call in (rank.history.recent(RING) if rank.history is not None else ())
            if call.issued_ns <= aim.until_ns
        ]
        for number, rank in ranks.items()
    }
    selection = Selection(ranks, calls, _STAYS)
    selection.select()
    known = _Known()
    return {
        number: _program(
            rank,
            [selection.from_known_source(number, call) for call in selection.kept[number]],
            aim,
            known,
        )
        for number, rank in sorted(ranks.items())
    }


class _Known:
    """What the calls of all ranks share: equal signatures are one, and so are places, of which
    there are none unless lines count."""

    def __init__(self) -> None:
        self._signatures: dict[Signature, Signature] = {}
        self._places: dict[int, Place] = {}

    def signature(self, signature: Signature) -> Signature:
        reduce_op = "sum" if signature.reduce_op in _NOT_OF_GLOO else signature.reduce_op
        made = replace(signature, reduce_op=reduce_op, device="")
        return self._signatures.setdefault(made, made)

    def place(self, place: Place | None) -> Place | None:
        """The place without its callers: in the small program each has a line of its own."""
        if place is None:
            return None
        made = Place((CallSite("", len(self._places) + 1, ""),))
        return self._places.setdefault(place.key, made)


def _program(rank: Rank, calls: Sequence[Call], aim: Aim, known: _Known) -> Program:
    ended_ns = rank.exiting_ns or rank.process.ended_ns or 0
    is_away = aim.kind.stack_tells and rank.rank in aim.culprits
    end: Ended | None = aim.ends.get(rank.rank, Ended(None, signal.SIGKILL))
    if is_away and aim.kind.ends_culprits:
        end = _ENDS.get(aim.kind.name, end)
    elif rank.process.alive or not 0 < ended_ns <= aim.until_ns or end != Ended(0):
        end = None
    moments = sorted({one for call in calls for one in (call.issued_ns, call.completed_ns)})
    several = len({call.thread for call in calls}) > 1
    rows: list[tuple[bool, int, Event]] = []
    for call in calls:
        done_ns = call.completed_ns if call.completed_ns <= aim.until_ns else 0
        failed = call.state is CallState.FAILED
        if failed and done_ns and is_away:
            continue  # it went on with an exception, and nothing was exchanged
        if failed or call.state is not CallState.COMPLETED:
            done_ns = 0
        # Another thread of the rank made calls meanwhile: one thread can only have them both so.
        within = bisect_left(moments, done_ns) - bisect_right(moments, call.issued_ns)
        is_async = call.is_async or (several and done_ns > 0 and within > 0)
        made = replace(
            call,
            signature=known.signature(call.signature),
            thread=0,
            state=CallState.ISSUED,
            is_async=is_async,
            agrees=False,
            bounded=False,
            place=known.place(call.place) if aim.parted else None,
        )
        rows.append((not is_async and not done_ns, call.issued_ns, Made(made)))
        if is_async and (done_ns or (end is None and not is_away)):
            rows.append((not done_ns, done_ns or aim.until_ns, Waited(call.number, call.site)))
    rows += [
        (False, one.time_ns, Created(replace(one, backend=BACKEND)))
        for one in rank.creations
        if one.time_ns <= aim.until_ns
    ]
    rows.sort(key=lambda row: row[:2])
    events = [event for _, _, event in rows]
    notes = []
    if end is not None:
        groups = rank.groups.items()
        events += [Destroyed(key) for key, group in groups if group.state is GroupState.DESTROYED]
        if end == _ENDS["rank_exception"]:
            notes = [(len(events), one) for one in ExceptionNote.among(rank.notes)[-1:]]
        events.append(end)
    elif rows and rows[-1][0]:  # else it stays in its own code
        events.append(Ended(0))
    return Program(
        rank=rank.rank,
        world_size=rank.world_size,
        host=rank.host,
        local_rank=rank.rank,
        pid=rank.pid,
        groups={
            key: replace(group, backend=BACKEND, state=GroupState.READY, lines=None)
            for key, group in rank.groups.items()
        },
        events=events,
        notes=notes,
    )
