"""The way from the record of a run to what each rank has to do to make its calls again.

A rank's events are its group creations, the begins of its calls, and the ends of those that were
not waited for where they were made, in the order in which the record has them. Any run of these
events in which each rank keeps its order may end as this one did: a call that was complete before
another one began did not need that one. So one thread a rank makes them all, also those of a
program that had several.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import UsageError
from ...record.kinds import Kind, kind_of
from ...record.layout import RING, CallState
from ...record.ops import POINT_TO_POINT
from ...record.safe_text import clean
from ...record.signature import ANY_SOURCE, Signature, tensors_bytes
from ...record.snapshot import Call, CallSite, GroupKey, Rank
from ...record.wording import ranks_text


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the run: its verdict (None without one), and when (Unix time; 0: not known)."""

    kind: Kind | None = None
    culprits: frozenset[int] = frozenset()
    time_ns: int = 0

    @property
    def is_about_calls(self) -> bool:
        """Whether making the calls again leads there again."""
        return self.kind is not None and self.kind.by_calls

    def left_before(self, rank: Rank) -> bool:
        """Whether the rank had ended by itself when that was found."""
        if self.kind is not None and self.kind.ends_culprits and rank.rank in self.culprits:
            return True
        ended_ns = rank.process.ended_ns
        return bool(ended_ns and self.time_ns and ended_ns < self.time_ns)


def ending(report: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Ending:
    """Reads the ending from a report.json and the lines of events.jsonl."""
    outcome = str(report.get("outcome", ""))
    errors = [one for one in report.get("findings", ()) if one["severity"] == "error"]
    verdict = next((one for one in errors if one["kind"] == outcome), None)
    if verdict is None:
        return Ending()
    times = [
        int(event["time_ns"])
        for event in events
        if event.get("finding") == outcome and isinstance(event.get("time_ns"), int)
    ]
    culprits = frozenset(verdict["culprits"])
    return Ending(kind_of(outcome), culprits, min(times, default=0))


class Selection:
    """The calls of each rank that are made again. `kept` and `notes` are there after `select`.

    What the record has of a group on some ranks alone is left out on all of them: calls that a ring
    has lost elsewhere, and calls of which too little is known. The end is kept as it was where what
    was found is about the calls (a mismatch, a deadlock, a rank that others wait for): the same is
    to be found again. Otherwise calls that not all ranks had come to are left out there, too.
    """

    def __init__(
        self, ranks: Mapping[int, Rank], calls: Mapping[int, Sequence[Call]], ended: Ending
    ) -> None:
        self._ranks = ranks
        self._calls = calls
        self._ended = ended
        self._left_out: Counter[str] = Counter()
        self._sources: dict[tuple[int, int], int] = {}
        self.kept: dict[int, list[Call]] = {}
        self.notes: list[str] = []

    def select(self) -> None:
        """Leave out, on all ranks alike, what cannot be made on all of them."""
        lost = {rank: calls[0].number for rank, calls in self._calls.items() if calls}
        lost = {rank: count for rank, count in lost.items() if count}
        for rank, calls in self._calls.items():
            if not calls and self._ranks[rank].calls:
                lost[rank] = self._ranks[rank].calls
        if lost:
            self.notes.append(
                f"the record keeps the last {RING} calls of a rank: up to {max(lost.values())} "
                f"earlier ones of {ranks_text(sorted(lost))} are lost, and are not made again"
            )
        self.kept = {rank: self._counted(rank, calls) for rank, calls in self._calls.items()}
        self._leave_out_unknown()
        self._cut_collectives(lost)
        self._cut_messages(lost)
        self._find_sources()
        if self._ended.kind is not None and not self._ended.is_about_calls:
            self.notes.append(
                f"the run ended with {self._ended.kind.name}, which its program did: its calls are "
                "made again, that is not"
            )
        self.notes += [f"left out: {count} {what}" for what, count in self._left_out.items()]

    def _counted(self, rank: int, calls: Sequence[Call]) -> list[Call]:
        """Leaves out calls that the backend refused at once: the next one has their number."""
        groups = self._ranks[rank].groups
        issued = {key: group.issued for key, group in groups.items()}
        latest: dict[tuple[Any, ...], int] = {}
        for call in calls:
            latest[_own(call)] = call.number
        found = []
        for call in calls:
            refused = call.state is CallState.FAILED and (
                latest[_own(call)] != call.number
                or (not _is_message(call) and call.seq >= issued.get(call.group, 0))
            )
            if refused:
                self._left_out["calls that the backend had refused"] += 1
            else:
                found.append(call)
        return found

    def _leave_out_unknown(self) -> None:
        collectives: set[tuple[GroupKey, int]] = set()
        messages: set[GroupKey] = set()
        for rank, calls in self.kept.items():
            groups = self._ranks[rank].groups
            for call in calls:
                if call.group in groups and _is_known(call):
                    continue
                if _is_message(call):
                    messages.add(call.group)
                else:
                    collectives.add((call.group, call.seq))
        if collectives or messages:
            self._drop(
                lambda call, _: (
                    call.group in messages
                    if _is_message(call)
                    else (call.group, call.seq) in collectives
                ),
                "calls whose arguments are not on record on every rank",
            )

    def _cut_collectives(self, lost: Mapping[int, int]) -> None:
        first: dict[GroupKey, int] = {}
        end: dict[GroupKey, int] = {}
        for number, rank in self._ranks.items():
            for key, group in rank.groups.items():
                if number in lost:
                    seqs = [
                        call.seq
                        for call in self.kept[number]
                        if call.group == key and not _is_message(call)
                    ]
                    first[key] = max(first.get(key, 0), min(seqs, default=group.issued))
                end[key] = min(end.get(key, group.issued), group.issued)
        self._drop(
            lambda call, _: not _is_message(call) and call.seq < first.get(call.group, 0),
            "collectives that the record of another rank has lost",
        )
        if not self._ended.is_about_calls:
            self._drop(
                lambda call, _: not _is_message(call) and call.seq >= end.get(call.group, 0),
                "collectives at the end that not all ranks had come to",
            )

    def _cut_messages(self, lost: Mapping[int, int]) -> None:
        """Sends and receives that have no other side. Where a rank receives from any source, no
        message to it with that tag is told from the others."""
        at_both: dict[tuple[Any, ...], list[int]] = {}
        open_to_all: set[tuple[GroupKey, int, int]] = set()
        for rank, calls in self.kept.items():
            for call in calls:
                if not _is_message(call):
                    continue
                ends = _ends(rank, call)
                if ends[0] == ANY_SOURCE:
                    open_to_all.add((call.group, ends[1], call.signature.tag))
                else:
                    both = at_both.setdefault((call.group, *ends, call.signature.tag), [-1] * 4)
                    place = 0 if call.signature.op == "send" else 2
                    if both[place] < 0:
                        both[place] = call.seq
                    both[place + 1] = call.seq
        # The mailboxes to which not as many messages were sent as were received there.
        sums: Counter[tuple[GroupKey, int, int]] = Counter()
        for rank, calls in self.kept.items():
            for call in filter(_is_message, calls):
                sent = call.signature.op == "send"
                sums[call.group, _ends(rank, call)[1], call.signature.tag] += 1 if sent else -1
        uneven = {mailbox for mailbox in open_to_all if sums[mailbox]}

        def has_no_other_side(call: Call, rank: int) -> bool:
            source, destination = _ends(rank, call)
            mailbox = (call.group, destination, call.signature.tag)
            if mailbox in open_to_all:
                return bool(lost) or (not self._ended.is_about_calls and mailbox in uneven)
            both = at_both[(call.group, source, destination, call.signature.tag)]
            first, last = max(both[0], both[2]), min(both[1], both[3])
            if bool(lost) and call.seq < (first if min(both) >= 0 else call.seq + 1):
                return True
            return not self._ended.is_about_calls and (min(both) < 0 or call.seq > last)

        self._drop(
            lambda call, rank: _is_message(call) and has_no_other_side(call, rank),
            "messages of which one side alone is on record",
        )

    def from_known_source(self, rank: int, call: Call) -> Call:
        """A receive from any source that is complete, as one from the rank whose message it got:
        what the program did next followed from that."""
        source = self._sources.get((rank, call.number))
        if source is None:
            return call
        return replace(call, signature=replace(call.signature, peer=source))

    def _find_sources(self) -> None:
        """The record does not have the source of a receive from any. Of the messages that a rank
        had been sent the one counts whose send was complete first: a send is, when its message is
        taken, or with those before it where the backend takes them before they are received."""
        sends: dict[tuple[Any, ...], list[Call]] = {}
        receives: dict[tuple[Any, ...], list[Call]] = {}
        for rank, calls in self.kept.items():
            for call in filter(_is_message, calls):
                source, destination = _ends(rank, call)
                mailbox = (call.group, destination, call.signature.tag)
                if call.signature.op == "send":
                    sends.setdefault((*mailbox, source), []).append(call)
                elif call.completed_ns and call.state is CallState.COMPLETED:
                    receives.setdefault(mailbox, []).append(call)
        for mailbox, calls in receives.items():
            if not any(call.signature.peer == ANY_SOURCE for call in calls):
                continue
            left = {key[3]: sent for key, sent in sends.items() if key[:3] == mailbox}
            for call in sorted(calls, key=lambda call: call.completed_ns):
                taken = call.signature.peer
                if taken == ANY_SOURCE:
                    taken = _sender(left, call)
                    if taken is None:
                        break
                    self._sources[mailbox[1], call.number] = taken
                if taken is not None and left.get(taken):
                    left[taken] = left[taken][1:]
        if self._sources:
            self.notes.append(
                f"{len(self._sources)} receives from any source are made from the rank whose "
                "message was the first, as the times of the sends tell"
            )

    def _drop(self, drops: Callable[[Call, int], bool], what: str) -> None:
        for rank, calls in self.kept.items():
            kept = [call for call in calls if not drops(call, rank)]
            if len(kept) < len(calls):
                self._left_out[what] += len(calls) - len(kept)
                self.kept[rank] = kept


def _is_message(call: Call) -> bool:
    return call.signature.op in POINT_TO_POINT


def _sender(left: Mapping[int, Sequence[Call]], receive: Call) -> int | None:
    """Returns whose message this receive got, of those that are left by source."""
    counts = sum(receive.signature.counts)
    found = [
        (sent[0].completed_ns or receive.completed_ns, sent[0].issued_ns, source)
        for source, sent in left.items()
        if sent
        and sent[0].issued_ns < receive.completed_ns
        and sum(sent[0].signature.counts) == counts
    ]
    return min(found)[2] if found else None


def _own(call: Call) -> tuple[Any, ...]:
    """Returns what a rank has once: a collective's number in its group, a message's in its
    channel."""
    signature = call.signature
    if not _is_message(call):
        return (call.group, call.seq)
    return (call.group, signature.op, signature.peer, signature.tag, call.seq)


def _ends(rank: int, call: Call) -> tuple[int, int]:
    """Source and destination of a message."""
    peer = ANY_SOURCE if call.signature.peer is None else call.signature.peer
    return (rank, peer) if call.signature.op == "send" else (peer, rank)


_WITHOUT_TENSORS = frozenset({"barrier", "monitored_barrier"})


def _is_known(call: Call) -> bool:
    signature = call.signature
    if signature.op in _WITHOUT_TENSORS:
        return True
    if not signature.tensors or (_is_message(call) and signature.peer is None):
        return False
    return signature.op != "all_to_all_single" or bool(signature.sends and signature.receives)


DEFAULT = "default_pg"
_LAST_LINE = 1 << 30
"""Python takes no greater number for a line."""


@dataclass(slots=True)
class ReplayPlan:
    """The calls that all ranks make, as JSON has them (see `program`), and sentences about those
    that they do not make.

    `kept`: by rank the numbers of the recorded calls that are made again.
    """

    world_size: int
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    kept: dict[int, frozenset[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def tensors_bytes(self) -> int:
        """The memory of the tensors of all ranks at least: one of each dtype and shape on each."""
        total = 0
        for its in self.ranks.values():
            made = [Signature.from_json(text) for text in its["signatures"]]
            total += tensors_bytes({one for each in made for one in (*each.tensors, *each.others)})
        return total


def selected(
    ranks: Mapping[int, Rank], ended: Ending, until_ns: int = 1 << 63
) -> tuple[dict[int, list[Call]], Selection]:
    """Returns the calls of each rank, up to then, and those that are made again. Raises UsageError
    where a rank is missing."""
    world_size = max((rank.world_size for rank in ranks.values()), default=0)
    missing = sorted(set(range(max(world_size, 1))) - set(ranks))
    if missing:
        raise UsageError(
            f"the record of {ranks_text(missing)} of {world_size} is missing: what they called "
            "cannot be made again, and the others would wait for them"
        )
    calls = {
        number: [call for call in rank.history.recent(RING) if call.issued_ns <= until_ns]
        if rank.history is not None
        else []
        for number, rank in ranks.items()
    }
    selection = Selection(ranks, calls, ended)
    selection.select()
    return calls, selection


def planned(ranks: Mapping[int, Rank], ended: Ending) -> ReplayPlan:
    """The plan for these ranks of one world. Raises UsageError where a rank is missing, or there is
    nothing to replay."""
    _, selection = selected(ranks, ended)
    found = {
        number: [selection.from_known_source(number, call) for call in its]
        for number, its in sorted(selection.kept.items())
    }
    if not any(found.values()) and not any(rank.creations for rank in ranks.values()):
        raise UsageError("the record has no call that could be made again")
    plan = ReplayPlan(len(ranks), notes=[*selection.notes])
    for number, kept in found.items():
        plan.kept[number] = frozenset(call.number for call in kept)
        plan.ranks[number] = _RankPlan(ranks[number], kept, ended).as_json()
    return plan


_Event = tuple[int, int, list[Any], int]
"""When it began, the number of its call, the event, and when the rank went on."""


class _RankPlan:
    """The events of one rank, as JSON (see `program`)."""

    def __init__(self, rank: Rank, calls: Sequence[Call], ended: Ending) -> None:
        self._rank = rank
        self._calls = calls
        self._ended = ended
        self._groups: list[GroupKey] = list(rank.groups)
        self._signatures: dict[str, int] = {}
        self._sites: dict[str, int] = {}

    def as_json(self) -> dict[str, Any]:
        """All that the rank's process is told."""
        rank, ended = self._rank, self._ended
        events = []
        went_on_ns = 0
        for began_ns, _, event, until_ns in sorted(self._events(), key=lambda one: one[:2]):
            # The time that the program took before it: none before a wait, since the record does
            # not tell when that began, and none behind the making of a group, nor its end.
            known = went_on_ns and event[0] in ("call", "create")
            events.append([*event, max(0, began_ns - went_on_ns) if known else 0])
            went_on_ns = until_ns
        return {
            "rank": rank.rank,
            "world_size": rank.world_size,
            "groups": [
                {
                    "ranks": list(group.ranks),
                    "desc": clean(group.desc, 120),
                    "timeout_s": group.timeout_s,
                }
                for group in rank.groups.values()
            ],
            "signatures": [*self._signatures],
            "sites": [*self._sites],
            "events": events,
            "stays": ended.is_about_calls and not ended.left_before(rank),
        }

    def _events(self) -> Iterator[_Event]:
        yield from self._of_groups()
        begins = [call.issued_ns for call in self._calls]
        ends = [
            call.completed_ns
            for call in self._calls
            if call.completed_ns and call.state is CallState.COMPLETED
        ]
        moments = sorted([*begins, *ends, *(one.time_ns for one in self._rank.creations)])
        for call in self._calls:
            failed = call.state is CallState.FAILED
            if failed and self._ended.is_about_calls and call.completed_ns >= moments[-1]:
                failed = False  # it is where the rank was when the verdict came: it must not pass
                done_ns = 0
            else:
                ended = failed or call.state is CallState.COMPLETED
                done_ns = call.completed_ns if ended else 0
            # A call is alone where no other event of the rank lies between its begin and its end.
            next_one = bisect_right(moments, call.issued_ns)
            alone = next_one >= bisect_left(moments, done_ns or 1 << 63)
            blocks = not call.is_async and (alone or call.signature.op == "monitored_barrier")
            group = self._groups.index(call.group)
            event = [
                "call",
                group,
                self._number(self._signatures, call.signature.to_json()),
                self._site(call.site),
                call.number,
                blocks,
                failed,
            ]
            went_on_ns = done_ns if blocks else call.started_ns or call.issued_ns
            if not blocks and done_ns:
                went_on_ns = min(went_on_ns, done_ns)
            yield (call.issued_ns, call.number, event, went_on_ns)
            if not blocks and done_ns:
                yield (done_ns, call.number, ["wait", call.number], done_ns)

    def _of_groups(self) -> Iterator[_Event]:
        """Creations that all ranks take part in come when they came. Those that members make among
        themselves have no time on record, and come first: their members have them in one order."""
        made = set()
        for creation in self._rank.creations:
            made.add(creation.group)
            member = creation.group in self._rank.groups
            event = [
                "create",
                self._groups.index(creation.group) if member else None,
                list(creation.ranks),
                self._site(creation.site),
                False,
            ]
            yield (creation.time_ns, -1, event, 0)
        keys = self._rank.groups
        defaults = [key for key in self._groups if keys[key].desc == DEFAULT]
        first_use_ns = self._first_use_ns(defaults) if len(defaults) > 1 else {}
        for turn, key in enumerate(defaults):
            time_ns = first_use_ns.get(key, 1 << 62) if turn else 0
            yield (time_ns, -3, ["init", self._groups.index(key)], 0)
        alone = [key for key in self._groups if key not in made and key not in defaults]
        for key in sorted(alone, key=lambda key: (keys[key].ranks, key)):
            event = ["create", self._groups.index(key), list(keys[key].ranks), None, True]
            yield (0, -2, event, 0)

    def _first_use_ns(self, defaults: Sequence[GroupKey]) -> Mapping[GroupKey, int]:
        """Returns when each default group that follows another one was there at the latest: by a
        call of it, or by the making of a group in its life. A life is over where a name comes
        again, and where a group is made before calls that the default group had behind it
        already."""
        first: dict[GroupKey, int] = {}
        for call in self._calls:
            if call.group in defaults:
                first.setdefault(call.group, call.issued_ns)
        life, names = 0, set[str]()
        for creation in self._rank.creations:
            time_ns = creation.time_ns
            before = [
                call.seq
                for call in self._calls
                if call.group == defaults[life] and call.issued_ns < time_ns
            ]
            over = creation.group[0] in names or max(before, default=-1) >= creation.world_seq
            while life + 1 < len(defaults) and (
                over or first.get(defaults[life + 1], time_ns) < time_ns
            ):
                life, names, over = life + 1, set(), False
                first[defaults[life]] = min(first.get(defaults[life], time_ns), time_ns)
            names.add(creation.group[0])
        return first

    def _site(self, site: CallSite | None) -> int | None:
        if site is None:
            return None
        line = min(max(site.line, 0), _LAST_LINE)
        names = [name.replace("\0", "") for name in (site.file, site.function)]
        text = "\0".join((names[0], str(line), names[1]))
        return self._number(self._sites, text)

    @staticmethod
    def _number(numbers: dict[str, int], text: str) -> int:
        return numbers.setdefault(text, len(numbers))
