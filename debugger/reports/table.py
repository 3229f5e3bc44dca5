"""Groups ranks that stand at the same call and line into the rows of a report.

512 ranks make a handful of rows: what matters is who does something else, so culprits come
before the rest, and large sets before small ones, when there are more rows than a reader takes in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..diagnosis.findings import CallIs
from ..record.kinds import kind_of
from ..record.wording import LOOK_HERE, RankState

MOST_ROWS = 12

NO_EVIDENCE = "not looked at"


@dataclass(frozen=True, slots=True)
class TableRow:
    """Ranks that stand at one place. `where` is "" when the line is not known."""

    ranks: tuple[int, ...]
    what: str
    where: str
    mark: str = ""
    culprit: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The rows to print, and how many ranks they leave out."""

    rows: tuple[TableRow, ...]
    left_out: int = 0


def of_finding(
    finding: Mapping[str, Any], standing: Mapping[str, Any], without: Iterable[int] = ()
) -> Table:
    """Returns where each rank of a finding stood, but for those in `without`. `standing` is the
    document's own `ranks`, used for those that the finding gives no evidence for."""
    culprits = set(finding["culprits"])
    evidence = finding["ranks"]
    members = {*map(int, evidence), *finding["victims"], *finding["missing"], *culprits}
    members -= set(without)
    places = Places([*evidence.values(), *standing.values()])
    rows: dict[tuple[str, str, bool], list[int]] = {}
    seen: dict[tuple[object, str], str] = {}
    for rank in sorted(members, key=lambda rank: (str(rank) not in evidence, rank)):
        one = evidence.get(str(rank))
        if one is not None:
            what, where = doing(one), places.text(one)
            seen.setdefault((one["call"], where), what)
        else:
            known = standing.get(str(rank))
            missing = RankState.UNSEEN if rank in finding["missing"] else NO_EVIDENCE
            where = places.text(known) if known else ""
            what = doing(known) if known else missing
            what = seen.get((known["call"], where), what) if known and known["call"] else what
        rows.setdefault((what, where, rank in culprits), []).append(rank)
    return limited(
        TableRow(tuple(ranks), what, where, LOOK_HERE if guilty else "", guilty)
        for (what, where, guilty), ranks in rows.items()
    )


@dataclass(frozen=True, slots=True)
class FindingTable:
    """The rows of one finding, and the sentences below them. `rounds`: how many more ranks its
    cycle has; `undecided`: without a majority any of its culprits may be the one that is wrong, and
    none is marked."""

    table: Table
    details: Sequence[str]
    rounds: int = 0
    undecided: bool = False


def of_whole_finding(finding: Mapping[str, Any], standing: Mapping[str, Any]) -> FindingTable:
    """Returns all that is shown of a finding below its headline."""
    details = list(finding["details"])
    shown = of_finding(finding, standing)
    rounds = 0
    if finding["kind"] == "deadlock":
        cycle, details = of_cycle(finding)
        if cycle.rows:
            rounds = cycle.left_out
            victims = of_finding(finding, standing, without=finding["culprits"])
            shown = Table((*cycle.rows, *victims.rows), victims.left_out)
    undecided = (
        kind_of(finding["kind"]).voted
        and len(finding["culprits"]) > 1
        and not (finding["victims"] or finding["missing"])
    )
    if undecided:
        rows = tuple(TableRow(row.ranks, row.what, row.where) for row in shown.rows)
        shown = Table(rows, shown.left_out)
    return FindingTable(shown, details, rounds, undecided)


def of_ranks(standing: Mapping[str, Any], world_size: int) -> Table:
    """Returns where every rank of the run stood."""
    places = Places(standing.values())
    rows: dict[tuple[str, str], list[int]] = {}
    for name, one in standing.items():
        rows.setdefault((doing(one), places.text(one)), []).append(int(name))
    never = [rank for rank in range(world_size) if str(rank) not in standing]
    if never:
        rows[RankState.UNSEEN, ""] = never
    return limited(TableRow(tuple(ranks), what, where) for (what, where), ranks in rows.items())


def of_cycle(finding: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """A deadlock's cycle in order, each rank with whom it waits for; and the other details.

    An empty table where the finding does not tell it.
    """
    places = Places(finding["ranks"].values())
    steps = finding.get("cycle") or ()
    rows = [
        TableRow(
            (step["rank"],),
            step["doing"],
            places.text(finding["ranks"].get(str(step["rank"]), {})),
            f"-> waits for rank {step['waits_for']}",
            culprit=True,
        )
        for step in steps
    ]
    told = {step["detail"] for step in steps}
    others = [line for line in finding["details"] if line not in told]
    return Table(tuple(rows[:MOST_ROWS]), len(rows[MOST_ROWS:])), others


def limited(rows: Iterable[TableRow]) -> Table:
    """At most `MOST_ROWS` of the rows: culprits first, then the largest; in order of ranks."""
    found = sorted(rows, key=lambda row: (not row.culprit, -len(row.ranks), row.ranks))
    shown = sorted(found[:MOST_ROWS], key=lambda row: row.ranks[0])
    return Table(tuple(shown), sum(len(row.ranks) for row in found[MOST_ROWS:]))


def doing(evidence: Mapping[str, Any]) -> str:
    """Tells what one rank does or did: `all_reduce(sum, float32[8])`, `finished, last call ...`."""
    state, call = str(evidence["state"]), evidence["call"]
    thread = f' in thread "{evidence["thread"]}"' if evidence.get("thread") else ""
    if not call:
        return state + thread
    call_is, call = CallIs.in_report(evidence), f"{call}{thread}"
    if call_is is CallIs.ALL:
        return str(call)
    if call_is is CallIs.OBJECT:
        return f"{state} {call}"
    return f"{state}, last call {call}"


def plural(what: str, count: int) -> str:
    """`wait in ...` for several ranks, `waits in ...` for one."""
    if count == 1:
        return what
    return re.sub(r"^(wait|run)s\b", r"\1", what)


def who(rows: Sequence[TableRow], spans: Sequence[str]) -> list[str]:
    """The first column: `ranks 0,1,3` above `rank  2`, the numbers below each other."""
    several = any(len(row.ranks) > 1 for row in rows)
    words = ["ranks" if len(row.ranks) > 1 else "rank" for row in rows]
    width = 5 if several else 4
    return [f"{word:<{width}} {span}" for word, span in zip(words, spans, strict=True)]


class Places:
    """Prints lines of code: `train.py:88 in step`, with the folder where two files share a name."""

    def __init__(self, evidence: Iterable[Mapping[str, Any]]) -> None:
        places = [one.get(name) for one in evidence for name in ("location", "called_at")]
        files = {place["file"] for place in places if place}
        names = [os.path.basename(file) for file in files]
        self._shared = {name for name in names if names.count(name) > 1}

    def text(self, evidence: Mapping[str, Any]) -> str:
        """The line of one rank, "" when it is not known; and that of its call, if it stands at
        another one, or has left there."""
        location, made = evidence.get("location"), evidence.get("called_at")
        if not location or not made:
            return self.line(location) if location else ""
        last = CallIs.in_report(evidence) is CallIs.LAST
        word = "last call" if last else "called"
        return f"{self.line(location)}, {word} at {self.line(made)}"

    def line(self, location: Mapping[str, Any]) -> str:
        """A place as report.json has it."""
        file = str(location["file"])
        name = os.path.basename(file)
        if name in self._shared:
            name = os.path.join(os.path.basename(os.path.dirname(file)), name)
        by = f", through {location['through']}" if location.get("through") else ""
        return f"{name}:{location['line']} in {location['function']}{by}"
