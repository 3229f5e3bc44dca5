"""The calls of all ranks as the page shows them: on one time axis, and side by side at the fault.

Ranks that made the same calls, and stood at the same place, are a class: a row that opens on the
axis, and a column beside the others. A message counts as the same where it goes as many ranks on.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
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
        self.meetings: dict[tuple[Hashable, ...], dict[int, Call]] = {}
        """By what calls of several ranks have in common: each rank's."""
        for rank, made in calls.items():
            for call in made:
                tie = tie_of(rank, call, call.group)
                self.meetings.setdefault(tie, {})[rank] = call
        self.odd: dict[tuple[Hashable, ...], frozenset[int]] = {}
        for tie, met in self.meetings.items():
            asked = {rank: call.signature for rank, call in met.items()}
            differ = tie[0] == "collective" and len(set(asked.values())) > 1
            if differ and (odd := odd_ranks(asked)):
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
        wrong = list(self.odd) or [tie for tie in self.meetings if not self._came_ns(tie)]
        found = [next(iter(self.meetings[tie].values())) for tie in wrong if tie[0] != "message"]
        first = min(found, key=lambda call: call.issued_ns, default=None) if verdict else None
        return None if first is None else (first.group, first.seq)

    def _came_ns(self, tie: tuple[Hashable, ...]) -> int:
        """Returns when the last rank entered it; 0 where somebody never did, as far as is known, or
        ranks made different calls there: they wait for each other."""
        calls = self.meetings[tie]
        call = next(iter(calls.values()))
        last_ns = max(one.issued_ns for one in calls.values())
        if call.signature.op in POINT_TO_POINT:
            done = call.completed_ns and call.state is not CallState.FAILED
            return last_ns if done or len(calls) > 1 else 0
        group = next((self.ranks[rank].groups.get(call.group) for rank in calls), None)
        for member in group.ranks if group is not None else ():
            own = self.ranks[member].groups.get(call.group) if member in self.ranks else None
            if member not in calls and (own is None or own.issued <= call.seq):
                return 0
        return 0 if tie in self.odd else last_ns

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
                    text, place = _texts(call)
                    word, site = (words.setdefault(one, len(words)) for one in (text, place))
                    at_fault = tie[0] == "collective" and (call.group, call.seq) == self.fault
                    flags = _ODD * (rank in self.odd.get(tie, ())) | _ASYNC * call.is_async
                    flags |= _FAULT * at_fault
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
            "span": max((one[0] for one in of_ranks.values()), default=0),
            "words": list(words),
            "groups": [self.labels.get(key, "?") for key in groups],
            "calls": shown,
            "met": [(came - base_ns) // 1000 if came else -1 for came in map(self._came_ns, met)],
            "ranks": of_ranks,
            "classes": [[spans(row.ranks), row.culprit, row.ranks] for row in rows],
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
            members = set(group.ranks)
            inside = [tuple(rank for rank in row.ranks if rank in members) for row in rows]
            pairs = zip(rows, inside, strict=True)
            columns = [replace(row, ranks=ranks) for row, ranks in pairs if ranks]
            for at in range(max(0, seq - BEFORE), seq + AFTER + 1):
                tie = ("collective", key, at)
                if tie in self.meetings:
                    odd = self.odd.get(tie, frozenset())
                    made = {"calls": self.meetings[tie], "odd": odd, "seq": at}
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
            came, state = False, "made fewer calls"
            if self.fault is not None:
                own = self.ranks[rank].groups.get(self.fault[0]) if rank in self.ranks else None
                came, state = own is not None and own.issued > row["seq"], "never came"
            return {"text": "", "state": "no longer on record" if came else state}
        state = {CallState.COMPLETED: "", CallState.FAILED: "failed"}.get(call.state, "no end")
        text, where = _texts(call)
        if named:
            where += f' group "{self.labels.get(call.group)}"'
        return {"text": text, "where": where, "state": state, "odd": rank in row.get("odd", ())}


def _texts(call: Call) -> tuple[str, str]:
    """Returns the call, and its line ("" where that is not known)."""
    return clean(call_text(call)), clean(site_text(call.site)) if call.site else ""


def _end_ns(rank: Rank, calls: Sequence[Call]) -> int:
    """Until when the rank is known to have done anything."""
    times = [max(call.issued_ns, call.completed_ns) for call in calls[-1:]]
    return max([*times, rank.heartbeat_ns, *(wait.since_ns for wait in rank.waits)], default=0)
