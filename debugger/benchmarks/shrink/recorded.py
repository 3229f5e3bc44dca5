"""The programs of a run's ranks, up to its verdict: what the simulation of a plan executes.

They are programs for gloo on the CPU, with one thread a rank, since that is what is to be written.
What the ranks did once the verdict was raised in them is left out: a rank that had not ended then
stays in the call that it was in, or, without one, in its own code.
"""

from __future__ import annotations

import signal
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import UsageError
from ...plan.program import Created, Destroyed, Ended, Event, Made, Program, Waited
from ...record.kinds import Kind, kind_of
from ...record.layout import CallState, GroupState
from ...record.notes import ExceptionNote, UnwindingNote, raised
from ...record.signature import Signature
from ...record.snapshot import Call, CallSite, Note, Place, Rank
from ...record.wording import ranks_text
from ..replay.plan import Ending, selected

BACKEND = "gloo"
_NOT_OF_GLOO = ("avg", "premul_sum")
_ENDS = {"early_exit": Ended(0), "rank_exception": Ended(1)}
"""How a culprit ends, by kind; one that died ends as is on record."""
_BY_CODE = frozenset({"rank_died", "rank_exception"})
"""Kinds that are no matter of calls, and that a line of code brings about all the same."""


@dataclass(frozen=True, slots=True)
class Aim:
    """A finding that a small program has to lead to, as report.json has it.

    `parted`: the ranks' lines had parted before, or that is what was found, so it counts which
    calls come from one line: `by_callers`, as the same callers have led to it. `until_ns`: when it
    was found (Unix time), if that ended the run. `ends`: how ranks ended.
    """

    kind: Kind
    culprits: frozenset[int]
    cause: str = ""
    parted: bool = False
    by_callers: bool = True
    until_ns: int = 1 << 63
    ends: Mapping[int, Ended] = field(default_factory=dict)

    @classmethod
    def of(cls, report: Mapping[str, Any], events: Iterable[Mapping[str, Any]] = ()) -> Aim:
        """Reads the verdict of a run, or else its first warning that lines part. Raises UsageError
        where there is none, or where it is not about calls."""
        errors = [one for one in report["findings"] if one["severity"] == "error"]
        parted = [one for one in report["findings"] if one["kind"] == "misaligned"]
        found = next(iter([*errors, *parted]), None)
        if found is None:
            raise UsageError("nothing was found in this run that a smaller program could show")
        kind = kind_of(found["kind"])
        if not (kind.by_calls or kind.name in _BY_CODE) or kind.name == "stalled":
            raise UsageError(
                f"the run ended with {kind.name}, whose cause is no call: what a smaller program "
                "would need for it is not on record"
            )
        ends = {}
        for rank, row in report.get("ranks", {}).items():
            code, number = ((row.get("exit") or {}).get(one) for one in ("code", "signal"))
            if rank.isdigit() and (code is not None or number is not None):
                ends[int(rank)] = Ended(code, number)
        ended = [one for one in events if one.get("finding") == kind.name and not kind.at_once]
        times = [one.get("time_ns") for one in ended]
        return cls(
            kind,
            frozenset(one for one in found["culprits"] if isinstance(one, int)),
            str(found.get("cause") or ""),
            kind.name == "misaligned" or found.get("parted_at") is not None,
            until_ns=min((one for one in times if isinstance(one, int)), default=1 << 63),
            ends=ends,
        )

    def said_of(self, culprits: Collection[int]) -> str:
        """`op_mismatch of rank 1`, for these culprits."""
        return f"{self.kind.name} of {ranks_text(sorted(culprits))}" if culprits else self.kind.name

    def is_met_by(self, other: Aim, culprits: frozenset[int]) -> bool:
        """Whether `other`, of a run in which these are the ranks to blame, is the same. Of several
        that end, the launcher lets one alone get so far."""
        same = other.culprits == culprits
        one_of_them = self.kind.ends_all and bool(other.culprits & culprits)
        parted = other.parted or not self.parted
        return other.kind is self.kind and parted and (same or one_of_them)


def aims(report: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> list[Aim]:
    """Returns the aim of a run, and behind it, where lines parted before, the same with lines alone
    for places, as those of a branch of its own meet the others', and without that, which a program
    may reach where the parting was a matter of exceptions. Raises UsageError."""
    aim = Aim.of(report, events)
    if not aim.parted:
        return [aim]
    without = [] if aim.kind.at_once else [replace(aim, parted=False)]
    return [aim, replace(aim, by_callers=False), *without]


def programs(ranks: Mapping[int, Rank], aim: Aim) -> dict[int, Program]:
    """Returns what each rank did, by rank. Raises UsageError where a rank's record is missing."""
    # Whatever was found, the calls at the end are kept as they were.
    calls, selection = selected(ranks, Ending(kind_of("deadlock")), aim.until_ns)
    signatures: dict[Signature, Signature] = {}
    places: dict[int, Place] = {}

    def shared(call: Call) -> Call:
        """The call as the small program makes it. Equal signatures of all ranks are one; a place is
        one without its callers, since each has a line of its own there."""
        made, place = replace(call.signature, device=""), None
        if made.reduce_op in _NOT_OF_GLOO:
            made = replace(made, reduce_op="sum")
        if aim.parted and call.place is not None:
            known = call.place if aim.by_callers else Place(call.place.sites[:1])
            place = places.setdefault(known.key, Place((CallSite("", len(places) + 1, ""),)))
        made = signatures.setdefault(made, made)
        return replace(call, signature=made, thread=0, agrees=False, bounded=False, place=place)

    return {
        number: _program(
            rank,
            [shared(selection.from_known_source(number, one)) for one in selection.kept[number]],
            len({call.thread for call in calls[number]}) > 1,
            aim,
        )
        for number, rank in sorted(ranks.items())
    }


def _program(rank: Rank, calls: Sequence[Call], has_threads: bool, aim: Aim) -> Program:
    ended = 0 < rank.exiting_ns <= aim.until_ns and rank.exit_code == 0
    end = Ended(0) if ended else None
    is_away = aim.kind.stack_tells and rank.rank in aim.culprits
    if aim.kind.leaves and end is None:  # to blame may be one that has skipped a call, and waits
        is_away = is_away and all(call.state is CallState.COMPLETED for call in calls)
    if is_away and aim.kind.ends_culprits:
        seen = aim.ends.get(rank.rank, Ended(None, signal.SIGKILL))
        end = _ENDS.get(aim.kind.name, seen)
    moments = sorted({one for call in calls for one in (call.issued_ns, call.completed_ns)})
    rows: list[tuple[bool, int, Event]] = []  # whether it pends, when, and what
    unwinding = {UnwindingNote.read(one.data) for one in UnwindingNote.among(rank.notes)}
    on_the_way_out = {note.call for note in unwinding if note is not None}
    for call in calls:
        is_over = 0 < call.completed_ns <= aim.until_ns
        refused = is_over and call.state is CallState.FAILED
        if is_away and (refused or call.number in on_the_way_out):
            continue  # an exception came of it, or led to it: that is what the rank ends with
        is_over = is_over and call.state is CallState.COMPLETED
        # Another thread of the rank made calls meanwhile: one thread can only have them both so.
        within = bisect_left(moments, call.completed_ns) - bisect_right(moments, call.issued_ns)
        is_async = call.is_async or (has_threads and is_over and within > 0)
        made = replace(call, state=CallState.ISSUED, is_async=is_async)
        rows.append((not (is_async or is_over), call.issued_ns, Made(made)))
        if is_async and (is_over or (end is None and not is_away)):
            time_ns = call.completed_ns if is_over else aim.until_ns
            rows.append((not is_over, time_ns, Waited(call.number, call.site)))
    rows += [
        (False, creation.time_ns, Created(replace(creation, backend=BACKEND)))
        for creation in rank.creations
        if creation.time_ns <= aim.until_ns
    ]
    rows.sort(key=lambda row: row[:2])
    events = [event for _, _, event in rows]
    notes = []
    if end is not None:
        for key, group in rank.groups.items():
            if group.state is GroupState.DESTROYED:
                events.append(Destroyed(key))
        if is_away and aim.kind.name == "rank_exception":
            # Its own text may name other ranks, and may be nobody's business.
            known = [one for one in rank.notes if raised(one).type]
            text = f"in place of {raised(known[-1]).type if known else 'an exception'}"
            site = known[-1].site if known else None
            notes = [(len(events), Note(ExceptionNote.KIND, 0, text, site))]
        events.append(end)
    elif rows and rows[-1][0]:  # else it stays in its own code
        events.append(Ended(0))
    return Program(
        rank=rank.rank,
        world_size=rank.world_size,
        groups={
            key: replace(group, backend=BACKEND, state=GroupState.READY, lines=None)
            for key, group in rank.groups.items()
        },
        events=events,
        notes=notes,
    )
