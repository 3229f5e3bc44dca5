"""The way from the record of a run to what each rank has to do to make its calls again.

A rank's events are its group creations, the begins of its calls, and the ends of those that were
not waited for where they were made, in the order in which the record has them. Any run of these
events in which each rank keeps its order may end as this one did: a call that was complete before
another one began did not need that one. So one thread a rank makes them all, also those of a
program that had several.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError
from ...record.layout import RING, CallState
from ...record.safe_text import clean
from ...record.signature import Signature
from ...record.sizes import tensors_bytes
from ...record.snapshot import Call, CallSite, Group, GroupKey, Rank
from ...record.wording import ranks_text
from .selection import Ending, Selection

DEFAULT = "default_pg"
_LAST_LINE = 1 << 30
"""Python takes no greater number for a line."""


@dataclass(slots=True)
class Plan:
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


def planned(ranks: Mapping[int, Rank], ended: Ending) -> Plan:
    """The plan for these ranks of one world. Raises UsageError where a rank is missing, or there is
    nothing to replay."""
    world_size = max((rank.world_size for rank in ranks.values()), default=0)
    missing = sorted(set(range(max(world_size, 1))) - set(ranks))
    if missing:
        raise UsageError(
            f"the record of {ranks_text(missing)} of {world_size} is missing: what they called "
            "cannot be made again, and the others would wait for them"
        )
    calls = {
        number: list(rank.history.recent(RING)) if rank.history is not None else []
        for number, rank in ranks.items()
    }
    selection = Selection(ranks, calls, ended)
    selection.select()
    found = {
        number: [selection.from_known_source(number, call) for call in its]
        for number, its in sorted(selection.kept.items())
    }
    if not any(found.values()) and not any(rank.creations for rank in ranks.values()):
        raise UsageError("the record has no call that could be made again")
    plan = Plan(world_size, notes=[*selection.notes])
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
        events = [
            [*event, max(0, gap_ns)]
            for event, gap_ns in self._with_gaps(sorted(self._events(), key=lambda one: one[:2]))
        ]
        return {
            "rank": rank.rank,
            "world_size": rank.world_size,
            "groups": [self._group(key) for key in self._groups],
            "signatures": [*self._signatures],
            "sites": [*self._sites],
            "events": events,
            "stays": ended.is_about_calls and not ended.left_before(rank),
        }

    def _group(self, key: GroupKey) -> dict[str, Any]:
        group = self._rank.groups[key]
        return {
            "ranks": list(group.ranks),
            "desc": clean(group.desc, 120),
            "timeout_s": group.timeout_s,
            "is_default": _is_default(group),
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
            ]
            yield (creation.time_ns, -1, event, 0)
        keys = self._rank.groups
        defaults = [key for key in self._groups if _is_default(keys[key])]
        first_use_ns = self._first_use_ns(defaults) if len(defaults) > 1 else {}
        for turn, key in enumerate(defaults):
            time_ns = first_use_ns.get(key, 1 << 62) if turn else 0
            yield (time_ns, -3, ["init", self._groups.index(key)], 0)
        alone = [key for key in self._groups if key not in made and key not in defaults]
        for key in sorted(alone, key=lambda key: (keys[key].ranks, key)):
            yield (0, -2, ["create_among", self._groups.index(key)], 0)

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

    @staticmethod
    def _with_gaps(events: Sequence[_Event]) -> Iterator[tuple[list[Any], int]]:
        """Yields the events with the time that the program took before each: none before a wait,
        since the record does not tell when that began, and none behind the making of a group, nor
        its end."""
        went_on_ns = 0
        for began_ns, _, event, until_ns in events:
            known = went_on_ns and event[0] in ("call", "create")
            yield event, began_ns - went_on_ns if known else 0
            went_on_ns = until_ns

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


def _is_default(group: Group) -> bool:
    return group.desc == DEFAULT
