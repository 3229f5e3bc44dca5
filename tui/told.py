"""The words of a report beside its findings: of a plan what was undecided and which ranks do the
same, of dumps of another recorder what they are and what is missing. It may come from anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..record.wording import ranks_text, spans
from .picture import ReportLine, Source
from .text import safe

MOST_PLACES = 100
MOST_CLASSES = 100
MOST_NOTES = 20
MOST_RANK = 1 << 20


def source_of(report: Mapping[str, Any]) -> Source:
    """Returns what the run was."""
    if isinstance(report.get("plan"), dict):
        return Source.PLAN
    return Source.DUMPS if report.get("source") == "flight_recorder" else Source.RUN


def told_in_report(report: Mapping[str, Any]) -> tuple[ReportLine, ...]:
    """Returns what a report says, in the order in which it matters."""
    source = source_of(report)
    if source is Source.PLAN:
        return (*_not_decided(report), *_alike(report))
    if source is Source.DUMPS:
        notes = report.get("notes")
        rows = notes[:MOST_NOTES] if isinstance(notes, list) else ()
        return tuple(ReportLine("", safe(row, 2000)) for row in rows)
    return ()


def _not_decided(report: Mapping[str, Any]) -> Iterator[ReportLine]:
    rows = _rows(report.get("undecided"))
    for row in rows[:MOST_PLACES]:
        where = f"{_place(row)} in {safe(row.get('function', '?'), 200)}"
        ranks = _ranks(row.get("ranks"))
        who = f" ({ranks_text(ranks)})" if ranks else ""
        sentence = f"{safe(row.get('what', '?'), 500)} at {where}{who}"
        yield ReportLine("undecided: ", sentence, doubt=True)
    if len(rows) > MOST_PLACES:
        yield ReportLine("undecided: ", f"and {len(rows) - MOST_PLACES} more places", doubt=True)
    for row in _rows(report["plan"].get("unknown"))[:MOST_PLACES]:
        where = f" at {_place(row)}" if row.get("file") else ""
        who = ranks_text(_ranks(row.get("ranks"))) or "some ranks"
        why = safe(row.get("why", "?"), 1000)
        yield ReportLine("not known: ", f"what {who} would do{where}: {why}", doubt=True)


def _alike(report: Mapping[str, Any]) -> Iterator[ReportLine]:
    """`ranks 0-1015 as rank 0 (12 calls each)`, where several ranks do the same."""
    known = [(row, _ranks(row.get("ranks"))) for row in _rows(report.get("classes"))]
    known = [(row, ranks) for row, ranks in known if ranks]
    if all(len(ranks) < 2 for _, ranks in known):
        return
    words = [_class_text(row, ranks) for row, ranks in known[:MOST_CLASSES]]
    if len(known) > MOST_CLASSES:
        words.append(f"and {len(known) - MOST_CLASSES} more classes")
    yield ReportLine("alike: ", "; ".join(words))


def _class_text(row: Mapping[str, Any], ranks: Sequence[int]) -> str:
    calls = row.get("calls")
    made = ""
    if isinstance(calls, int):
        made = f"{calls} call{'' if calls == 1 else 's'}"
    if len(ranks) == 1:
        return f"rank {ranks[0]}" + (f" ({made})" if made else "")
    first = row.get("as") if isinstance(row.get("as"), int) else ranks[0]
    return f"ranks {spans(ranks)} as rank {first}" + (f" ({made} each)" if made else "")


def _place(row: Mapping[str, Any]) -> str:
    file = safe(os.path.basename(str(row.get("file", "?"))), 200)
    return f"{file}:{safe(row.get('line', '?'), 12)}"


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _ranks(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(one for one in value if type(one) is int and 0 <= one < MOST_RANK)
