"""Makes the report.json document of a run; every other form of the report is rendered from it.

Everything in it that came from a rank is harmless to print: it went through `sanitize`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..diagnosis.facts.evidence import standing
from ..diagnosis.facts.world import World, exit_status
from ..diagnosis.findings import Finding, RankEvidence
from ..diagnosis.limits import Limits
from ..record.safe_text import clean
from ..record.secret_words import masked, sentence
from ..record.snapshot import CallSite, Note, Rank, Snapshot
from . import ddp_times, off
from .stored import SCHEMA, Document

_MOST_NESTING = 6
_OF_DIVERGENCE = ("quantity", "name", "axis", "step", "max_difference")
"""What a divergence has of its own, beside `data`."""
_OF_SLIPS = ("slip", "parted_at", "decision")
"""What a finding has of a group in which lines part, or of the branch that decided it."""


def build(
    *,
    command: Sequence[str],
    run_dir: Path,
    world_size: int,
    duration_s: float,
    outcome: str,
    exit_code: int,
    findings: Sequence[tuple[Finding, float | None]],
    ranks: Mapping[int, Rank],
    ends: Mapping[int, Rank] | None = None,
    stacks: Mapping[int, Sequence[str]] | None = None,
    notes: Sequence[str] = (),
    unreadable: Mapping[int, Note] | None = None,
) -> Document:
    """The report of one run: `report.json`.

    `outcome` is "ok", the kind of the verdict, "failed", "interrupted", "unwatched" (the program
    succeeded, and no rank was seen) or "tool_error".
    `findings` come with the seconds from the moment each became observable to its detection
    (None: not measured). `ranks` is where each rank stood when it mattered; `ends`, where given,
    the same ranks seen later, of which only how they ended is taken. A rank of this world that is
    in `ends` alone came to be seen too late to matter, as those of a node that joins after a
    verdict: it is in the report as it was seen then. `world_size` is 0 where nobody had told it.
    `stacks` are lines per rank, used where a finding has none. `notes` are sentences about the
    run itself, such as a record that could not be written. `unreadable`: `Snapshot.unreadable`.

    Of a run that was packed into one file, `distdebug report` makes `run_dir` the file's name and
    adds `"packed": true`.
    """
    stacks, ends = stacks or {}, ends or {}
    late = {number: one for number, one in ends.items() if number < world_size or not world_size}
    ranks = {**late, **ranks}
    return {
        "schema": SCHEMA,
        "outcome": outcome,
        "exit_code": exit_code,
        "world_size": world_size,
        "duration_s": round(duration_s, 3),
        "command": [clean(word) for word in masked(command)],
        "run_dir": clean(str(run_dir)),
        "findings": [of_finding(finding, after_s, stacks) for finding, after_s in findings],
        "warnings": sum(finding.severity != "error" for finding, _ in findings),
        "ranks": _ranks(ranks, ends, world_size),
        "hosts": _hosts(ranks),
        "injected": [],
        "ddp": ddp_times.of_ranks({**ranks, **ends}),
        "off": off.of_ranks({**ranks, **ends}, unreadable or {}),
        "stacks_file": "stacks/stacks.txt" if stacks else None,
        "notes": [clean(note) for note in (*notes, *filter(None, [sentence(command)]))],
    }


def minimal(outcome: str, exit_code: int, run_dir: Path) -> Document:
    """The report of a run of which a whole one cannot be made."""
    return build(
        command=(),
        run_dir=run_dir,
        world_size=0,
        duration_s=0.0,
        outcome=outcome,
        exit_code=exit_code,
        findings=(),
        ranks={},
    )


def of_finding(
    finding: Finding, after_s: float | None, stacks: Mapping[int, Sequence[str]]
) -> Document:
    """Returns a row of `findings`; see `build`."""
    group = finding.group
    own = [name for name in _OF_SLIPS if name in finding.data]
    own += _OF_DIVERGENCE if finding.kind == "divergence" else ()
    return {
        "kind": finding.kind,
        "title": finding.about.title,
        "severity": finding.severity,
        "proven": finding.proven,
        "cause": None if finding.cause is None else clean(finding.cause),
        "culprits": list(finding.culprits),
        "victims": list(finding.victims),
        "missing": list(finding.missing),
        "group": group
        and {"name": clean(group.name), "desc": clean(group.desc), "ranks": list(group.ranks)},
        "seq": finding.seq,
        "message": clean(finding.message),
        "headline": clean(finding.headline or finding.message),
        "difference": clean(finding.difference) or None,
        "story": list(finding.story),
        "cycle": [
            {
                "rank": one.rank,
                "doing": clean(one.doing),
                "waits_for": one.waits_for,
                "detail": clean(one.detail),
            }
            for one in finding.cycle
        ],
        "ranks": {
            str(rank): {
                **_stand(one),
                "stack": [clean(line) for line in one.stack or stacks.get(rank, ())],
            }
            for rank, one in sorted(finding.ranks.items())
        },
        "details": [clean(line) for line in finding.details],
        "data": _plain(finding.data),
        **{name: _plain(finding.data.get(name)) for name in own},
        "side": finding.side,
        "not_in_record": list(finding.not_in_record),
        "detected_after_s": None if after_s is None else round(after_s, 3),
    }


def _stand(evidence: RankEvidence) -> Document:
    """Returns where the rank stood and, where those are others, the line and the thread that made
    the call."""
    more = {"called_at": location(evidence.called_at), "thread": clean(evidence.thread)}
    return {
        "state": clean(evidence.state),
        "call": None if evidence.call is None else clean(evidence.call),
        "call_is": evidence.call_is.value,
        "location": location(evidence.location),
        **{name: value for name, value in more.items() if value},
    }


def location(site: CallSite | None) -> Document | None:
    if site is None:
        return None
    place = {"file": clean(site.file), "line": site.line, "function": clean(site.function)}
    return {**place, "through": clean(site.through)} if site.through else place


def _ranks(ranks: Mapping[int, Rank], ends: Mapping[int, Rank], world_size: int) -> Document:
    world = World(Snapshot(taken_ns=0, world_size=world_size, ranks=ranks), None, Limits())
    found: Document = {}
    # What many ranks have in common is one object: of 16,384 ranks that is most of a report.
    rows: dict[RankEvidence, Document] = {}
    exits: dict[tuple[int | None, int | None], Document] = {}
    for number, rank in sorted(ranks.items()):
        # A stack is no part of the row, and may be a list.
        stands = replace(standing(world, number), stack=())
        if stands not in rows:
            rows[stands] = _stand(stands)
        later = ends.get(number)
        end = later if later is not None and later.pid == rank.pid else rank
        signal = end.process.signal
        code = None if signal is not None else exit_status(end)
        found[str(number)] = {
            "pid": rank.pid,
            "host": clean(rank.host),
            "exit": exits.setdefault((code, signal), {"code": code, "signal": signal}),
            "calls": rank.calls,
            **({} if rank.groups else {"groups": 0}),
            **rows[stands],
        }
    return found


def _hosts(ranks: Mapping[int, Rank]) -> Document:
    """Returns which ranks are on which host. Nodes of one name are told apart by their number."""
    found: dict[tuple[str, int], list[int]] = {}
    for number, rank in sorted(ranks.items()):
        found.setdefault((clean(rank.host), rank.node), []).append(number)
    names = Counter(host for host, _ in found)
    return {
        host if names[host] == 1 else f"{host} (node {node})": numbers
        for (host, node), numbers in found.items()
    }


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy that is JSON, whatever a rank had put on record."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth < _MOST_NESTING and isinstance(value, Mapping):
        return {clean(str(key)): _plain(one, depth + 1) for key, one in value.items()}
    if depth < _MOST_NESTING and isinstance(value, list | tuple | set | frozenset):
        return [_plain(one, depth + 1) for one in value]
    return clean(str(value))
