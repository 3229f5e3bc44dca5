"""The calls of all ranks as the page shows them: on one time axis, and side by side at the fault.

Ranks that made the same calls, and stood at the same place, are a class: a row that opens on the
axis, and a column beside the others. A message counts as the same where it goes as many ranks on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ...diagnosis.facts.call_histories import odd_ranks
from ...record.layout import CallState
from ...record.ops import POINT_TO_POINT
from ...record.safe_text import clean
from ...record.snapshot import Call, GroupKey, Rank, tie_of
from ...record.wording import RankState, call_text, group_name, site_text, spans
from .. import table
from ..table import TableRow

MOST_CALLS = 48_000
"""The most calls on the axis, of all ranks together: those of 1,024 ranks take 0.6 MB."""
MOST_CALLS_OF_A_RANK = 1000
MOST_COLUMNS = 8
BEFORE, AFTER = 6, 3
"""So many calls before and after the fault are side by side."""
_OPEN, _FAILED = -1, -2
_ODD, _ASYNC, _FAULT = 1, 2, 4


def classes(
    document: Mapping[str, Any], known: Mapping[int, Rank], calls: Mapping[int, Sequence[Call]]
) -> list[TableRow]:
    """Returns the ranks that made the same calls and stood at the same place, culprits first."""
    standing, size = document["ranks"], max(document["world_size"], len(known), 1)
    culprits = {rank for one in document["findings"][:1] for rank in one["culprits"]}
    places, labels = table.Places(standing.values()), _labels(known)
    rows: dict[Hashable, tuple[TableRow, list[int]]] = {}
    for rank in sorted({*map(int, standing), *known, *range(document["world_size"])}):
        one, what, where, state = standing.get(str(rank)), str(RankState.UNSEEN), "", ""
        if one is not None:
            what, where, state = table.doing(one), places.text(one), one["state"]
        made = tuple(_alike(rank, call, labels, size) for call in calls.get(rank, ()))
        # Of a rank whose calls are known these are compared, and not the text of the last one.
        row = TableRow((), what, where, culprit=rank in culprits)
        key = (row.culprit, state if made else what, where, made)
        rows.setdefault(key, (row, []))[1].append(rank)
    found = [
        replace(row, ranks=tuple(ranks), what=table.plural(row.what, len(ranks)))
        for row, ranks in rows.values()
    ]
    return sorted(found, key=lambda row: (not row.culprit, row.ranks))


def _alike(rank: int, call: Call, labels: Mapping[GroupKey, str], size: int) -> Hashable:
    signature = call.signature
    if signature.op in POINT_TO_POINT and signature.peer is not None and signature.peer >= 0:
        signature = replace(signature, peer=(signature.peer - rank) % size)
    return (signature, call.site, labels.get(call.group), call.seq, call.is_async)


def _labels(ranks: Mapping[int, Rank]) -> dict[GroupKey, str]:
    """Returns the names of the groups: those that a mesh has for each of its rows have one name."""
    groups = {key: group for rank in ranks.values() for key, group in rank.groups.items()}
    return {key: clean(group_name(key[0], group.desc)) for key, group in groups.items()}


def read(ranks: Mapping[int, Rank]) -> dict[int, Sequence[Call]]:
    """Returns the last calls of each rank, as many as are shown."""
    most = min(MOST_CALLS_OF_A_RANK, max(4, MOST_CALLS // max(1, len(ranks))))
    return {
        number: rank.history.recent(most) if rank.history is not None else ()
        for number, rank in sorted(ranks.items())
    }


@dataclass(slots=True)
class _Meeting:
    """The calls of several ranks that belong together."""

    calls: dict[int, Call] = field(default_factory=dict)

    def came_ns(self, ranks: Mapping[int, Rank]) -> int:
        """Returns when the last rank entered it; 0 where somebody never did, as far as is known."""
        call = next(iter(self.calls.values()))
        if call.signature.op in POINT_TO_POINT:
            done = call.completed_ns and call.state is not CallState.FAILED
            alone = len(self.calls) < 2 and not done
            return 0 if alone else max(one.issued_ns for one in self.calls.values())
        group = next((ranks[rank].groups.get(call.group) for rank in self.calls), None)
        for member in group.ranks if group is not None else ():
            own = ranks[member].groups.get(call.group) if member in ranks else None
            if member not in self.calls and (own is None or own.issued <= call.seq):
                return 0
        return max(one.issued_ns for one in self.calls.values())


class Timeline:
    """The calls of all ranks, and what they have in common."""

    def __init__(
        self,
        ranks: Mapping[int, Rank],
        calls: Mapping[int, Sequence[Call]],
        verdict: Mapping[str, Any] | None,
        ends: Mapping[int, int] = MappingProxyType({}),
        modelled: bool = False,
    ) -> None:
        """`ends`: until when the ranks' processes ran (Unix time in ns; 0: not known). `modelled`:
        the times are those of a plan, whose ranks stand where they end for ever."""
        self.ranks, self.calls, self.ends, self.modelled = ranks, calls, ends, modelled
        self.labels = _labels(ranks)
        self.meetings: dict[tuple[Hashable, ...], _Meeting] = {}
        for rank, made in calls.items():
            for call in made:
                tie = tie_of(rank, call, call.group)
                self.meetings.setdefault(tie, _Meeting()).calls[rank] = call
        self.odd: dict[tuple[Hashable, ...], frozenset[int]] = {}
        for tie, one in self.meetings.items():
            asked = {rank: call.signature for rank, call in one.calls.items()}
            if (
                tie[0] == "collective"
                and len(set(asked.values())) > 1
                and (odd := odd_ranks(asked))
            ):
                self.odd[tie] = odd
        self.fault = self._fault(verdict)

    def _fault(self, verdict: Mapping[str, Any] | None) -> tuple[GroupKey, int] | None:
        """The collective at which it went wrong: the verdict's, or the first that differs, or that
        somebody has never entered."""
        group = verdict.get("group") if verdict else None
        if verdict and group and isinstance(verdict.get("seq"), int):
            keys = {key for rank in self.ranks.values() for key in rank.groups}
            named = [key for key in keys if clean(key[0]) == group["name"]]
            named = [key for key in named if ("collective", key, verdict["seq"]) in self.meetings]
            if named:
                return max(named, key=lambda key: key[1]), verdict["seq"]
        wrong = list(self.odd) or [
            tie for tie, one in self.meetings.items() if not one.came_ns(self.ranks)
        ]
        found = [
            next(iter(self.meetings[tie].calls.values())) for tie in wrong if tie[0] == "collective"
        ]
        first = min(found, key=lambda call: call.issued_ns, default=None) if verdict else None
        return None if first is None else (first.group, first.seq)

    def as_json(self, rows: Sequence[TableRow]) -> dict[str, Any]:
        """Returns what the script of the page draws. Times are in microseconds from the first call
        on. The calls of a rank are three numbers each: its begin after the last one's, how long it
        took (-1: no end, -2 and less: it failed after that), and its place in `calls` after that of
        the last one."""
        words: dict[str, int] = {}
        groups: dict[GroupKey, int] = {}
        entries: dict[Hashable, int] = {}
        shown: list[list[int]] = []
        met = {tie: number for number, tie in enumerate(self.meetings)}
        base_ns = min((made[0].issued_ns for made in self.calls.values() if made), default=0)
        last_ns = max((made[-1].issued_ns for made in self.calls.values() if made), default=0)
        of_ranks: dict[str, list[Any]] = {}
        for rank, made in self.calls.items():
            row: list[int] = []
            began_us = last = 0
            end_ns = max(_end_ns(self.ranks[rank], made), self.ends.get(rank, 0))
            if self.modelled:
                end_ns = min(end_ns, last_ns + (last_ns - base_ns) // 10)
            for call in made:
                tie = tie_of(rank, call, call.group)
                key = (tie, call.signature, call.site, call.is_async)
                at = entries.get(key)
                if at is None:
                    at = entries[key] = len(shown)
                    texts = (
                        clean(call_text(call)),
                        clean(site_text(call.site)) if call.site else "",
                    )
                    word, site = (words.setdefault(text, len(words)) for text in texts)
                    flags = _ODD * (rank in self.odd.get(tie, ())) | _ASYNC * call.is_async
                    flags |= _FAULT * (
                        (call.group, call.seq) == self.fault and tie[0] == "collective"
                    )
                    group = groups.setdefault(call.group, len(groups))
                    shown.append([word, site, group, call.seq, met[tie], flags])
                from_us = (call.issued_ns - base_ns) // 1000
                took = _OPEN
                if call.completed_ns:
                    took = max(0, call.completed_ns - call.issued_ns) // 1000
                    took = _FAILED - took if call.state is CallState.FAILED else took
                row += [from_us - began_us, took, at - last]
                began_us, last = from_us, at
            until_us = max(0, end_ns - base_ns) // 1000
            of_ranks[str(rank)] = [until_us, row]
        return {
            "start_ms": base_ns // 1_000_000,
            "span": max((one[0] for one in of_ranks.values()), default=0),
            "words": list(words),
            "groups": [self.labels.get(key, "?") for key in groups],
            "calls": shown,
            "met": [
                # Those who made different calls at one place wait for each other.
                (came - base_ns) // 1000
                if tie not in self.odd and (came := one.came_ns(self.ranks))
                else -1
                for tie, one in self.meetings.items()
            ],
            "ranks": of_ranks,
            "classes": [
                [spans(row.ranks), row.what, row.where, row.culprit, row.ranks] for row in rows
            ],
        }

    def around(self, rows: Sequence[TableRow]) -> dict[str, Any] | None:
        """Returns the calls around the fault: ranks that did the same as columns, sequence numbers
        as rows; None where no call is on record. Where no collective is at fault, as in a cycle of
        messages, these are the last calls of each."""
        if not self.meetings:
            return None
        columns = list(rows)
        found: list[dict[str, Any]] = []
        if self.fault is None:
            title = "The last calls of each rank"
            for back in range(BEFORE, 0, -1):
                last = {rank: made[-back] for rank, made in self.calls.items() if len(made) >= back}
                found.append({"label": str(1 - back) if back > 1 else "last", "calls": last})
        else:
            key, seq = self.fault
            group = next(one.groups[key] for one in self.ranks.values() if key in one.groups)
            title = f'Group "{self.labels[key]}"'
            inside = [tuple(rank for rank in row.ranks if rank in group.ranks) for row in rows]
            pairs = zip(rows, inside, strict=True)
            columns = [replace(row, ranks=ranks) for row, ranks in pairs if ranks]
            for at in range(max(0, seq - BEFORE), seq + AFTER + 1):
                tie = ("collective", key, at)
                if tie in self.meetings:
                    odd = self.odd.get(tie, frozenset())
                    made = {"calls": self.meetings[tie].calls, "odd": odd, "seq": at}
                    found.append({"label": f"#{at}", "fault": at == seq, **made})
        firsts = [row.ranks[0] for row in columns[:MOST_COLUMNS]]
        named = len({call.group for made in self.calls.values() for call in made}) > 1
        for row in found:
            cells = [self._cell(row, rank, named and self.fault is None) for rank in firsts]
            row["same"], row["cells"] = all(cell == cells[0] for cell in cells), cells
        return {
            "title": title,
            "columns": columns[:MOST_COLUMNS],
            "rows": [row for row in found if any(cell["text"] for cell in row["cells"])],
            "left_out": sum(len(row.ranks) for row in columns[MOST_COLUMNS:]),
            "as_first": any(
                call.signature.peer is not None for row in found for call in row["calls"].values()
            ),
        }

    def _cell(self, row: Mapping[str, Any], rank: int, named: bool) -> dict[str, Any]:
        call = row["calls"].get(rank)
        if call is None:
            groups = self.ranks[rank].groups if rank in self.ranks else {}
            own = groups.get(self.fault[0]) if self.fault else None
            came = own is not None and own.issued > row["seq"]
            return {"text": "", "state": "no longer on record" if came else "never came"}
        state = {CallState.COMPLETED: "", CallState.FAILED: "failed"}.get(call.state, "no end")
        where = clean(site_text(call.site)) if call.site else ""
        if named:
            where += f' group "{self.labels.get(call.group, "?")}"'
        odd = rank in row.get("odd", ())
        return {"text": clean(call_text(call)), "where": where, "state": state, "odd": odd}


def _end_ns(rank: Rank, calls: Sequence[Call]) -> int:
    """Until when the rank is known to have done anything."""
    times = [max(call.issued_ns, call.completed_ns) for call in calls[-1:]]
    return max([*times, rank.heartbeat_ns, *(wait.since_ns for wait in rank.waits)], default=0)
