"""A head of many nodes has each tell it less often, asks some of them only, and tells them less.

To take in a hundred digests a second takes a head more than a hundredth of a core. Up to 64 nodes
it takes them as they come; of more nodes each tells of ranks that call all the time when it is
asked, which the head does before it looks at these, and seldom by itself; lets a moment pass
between two digests of ranks that now stand still and now do not; and tells fewer of their last
calls. How a process ended is told at once, whatever the pace.

A rank that calls all the time has told its newest calls alone; where ranks disagreed first may be
long before those. All that is on record of one rank is 400 KB, so of 16,384 ranks some are asked
before a finding is believed: those that it is about, and of the ranks that tell the same (equal
counts and equal chains in its group: they called the same) one, who speaks for all of them.

Of 16,384 ranks a report takes megabytes, and would go to each of 2,048 nodes; they get what was
found and whom it is about. The head has all of it in its run directory, and says so.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

from ..diagnosis.findings import Finding
from ..record.reading.copies import FEW_NODES, calling_every_s
from ..record.safe_files import object_of
from ..record.snapshot import Rank
from .limits import MOST_DIGESTS_PER_S, PINGS_PER_S
from .messages import PatchError, inflated

IDLE_DIGESTS_PER_S, IDLE_S = 125, 20.0
"""The rate of digests of all nodes together, while nothing changes on them; but no node says less
often that its ranks still stand where they did: what only the clock brings is looked for when it
does."""
LEAST_AHEAD = 4
"""Messages: what is told of ranks that call and that stand still, their logs, and an answer."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`busy_s`: between two digests of ranks that call all the time; `least_s`: between any two,
    but for how processes end; `idle_s`: while nothing changes; `still_calls`: of a rank that has
    come to stand still, so many of its last calls are told; `ahead`: while so many messages are on
    the way that the head has not taken in, nothing is told."""

    busy_s: float = 0.25
    least_s: float = 0.0
    idle_s: float = 0.5
    still_calls: int = 256
    ahead: int = 16

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Pace:
        """Reads the pace that the head has told. Raises ValueError, TypeError, KeyError."""
        values = [float(data[one.name]) for one in fields(cls)]
        if not all(isfinite(one) and one >= 0 for one in values):
            raise ValueError("that is no pace")
        busy_s, least_s, idle_s = (min(one, 300.0) for one in values[:3])
        still_calls, ahead = map(int, values[3:])
        return cls(busy_s, least_s, idle_s, min(still_calls, 4096), max(1, ahead))

    @property
    def told(self) -> dict[str, Any]:
        """Returns the pace as it goes over the wire."""
        return asdict(self)


def pace_for(nodes: int) -> Pace:
    """Returns the pace of so many nodes. It changes with each doubling, not with each node."""
    if nodes <= FEW_NODES:
        return Pace()
    doubled = 1 << (nodes - 1).bit_length()
    usual = Pace()
    return Pace(
        busy_s=calling_every_s(nodes),
        least_s=doubled / MOST_DIGESTS_PER_S,
        idle_s=max(usual.idle_s, min(IDLE_S, doubled / IDLE_DIGESTS_PER_S)),
        still_calls=max(16, usual.still_calls * FEW_NODES // doubled),
        ahead=max(LEAST_AHEAD, usual.ahead * FEW_NODES // doubled),
    )


def ping_every_s(nodes: int, usual_s: float) -> float:
    """Returns the seconds after which each of so many nodes is asked again whether it is there."""
    return max(usual_s, nodes / PINGS_PER_S)


ALL = 512
"""Up to so many ranks on other nodes all are asked."""
MOST = 64
_MOST_OF_THE_FINDING = 32

MOST_LOOKED_INTO = 64
"""Nodes whose ranks' stacks are taken for the head; each other node takes its own."""
_EACH = 2
"""Ranks that stand at one place, in one wait, have one stack."""


def nodes_to_look_into(ranks: Mapping[int, Rank]) -> frozenset[int] | None:
    """The nodes whose stacks the head asks for; None: all of them. Where there are many, some of
    each sort of ranks: those that are fewest of a sort come first."""
    nodes = {one.node for one in ranks.values() if one.node}
    if len(nodes) <= MOST_LOOKED_INTO:
        return None
    sorts: dict[object, list[int]] = {}
    for rank in ranks.values():
        if rank.node and rank.process.alive:
            waits = tuple((one.activity, one.site, one.inferred) for one in rank.waits)
            groups = tuple((key, one.issued) for key, one in rank.groups.items())
            sort = (rank.process.state, rank.location, rank.free_threads > 0, waits, groups)
            sorts.setdefault(sort, []).append(rank.node)
    chosen: dict[int, None] = {}
    for row in sorted(sorts.values(), key=len):
        chosen.update(dict.fromkeys(row[:_EACH]))
    return frozenset(list(chosen)[:MOST_LOOKED_INTO])


def in_question(finding: Finding, ranks: Mapping[int, Rank]) -> frozenset[int] | None:
    """The ranks whose calls are wanted; None: everybody's."""
    if sum(1 for one in ranks.values() if one.node) <= ALL:
        return None
    about = [*finding.culprits[:_MOST_OF_THE_FINDING], *finding.ranks]
    wanted = dict.fromkeys(about[:_MOST_OF_THE_FINDING])
    for rank in (*_speakers(finding, ranks), *finding.victims):
        if len(wanted) >= MOST:
            break
        wanted[rank] = None
    return frozenset(rank for rank in wanted if rank in ranks)


def came_to_it(
    finding: Finding, ranks: Mapping[int, Rank], asked: Collection[int]
) -> frozenset[int]:
    """Returns the ranks that are in question now, where `asked` were when the finding was seen
    first: not all nodes had told by then where their ranks stand. A class of which one was asked
    needs no other."""
    wanted = [*finding.culprits[:_MOST_OF_THE_FINDING], *_speakers(finding, ranks, asked)]
    new = dict.fromkeys(rank for rank in wanted if rank in ranks and rank not in asked)
    return frozenset(list(new)[:MOST])


def _speakers(
    finding: Finding, ranks: Mapping[int, Rank], asked: Collection[int] = ()
) -> Iterable[int]:
    """The first rank of each class, as the diagnosis takes it, or one that was asked; the smallest
    classes first, since what many do is most likely right."""
    if finding.group is None:
        return ()
    name, members = finding.group.name, set(finding.group.ranks)
    classes: dict[tuple[object, ...], list[int]] = {}
    for number, rank in ranks.items():
        if number in members:
            for key, group in rank.groups.items():
                if key[0] == name and group.issued:
                    told = (key, group.issued, group.chain, group.exact)
                    classes.setdefault(told, []).append(number)
    rows = sorted(classes.values(), key=len)
    # The largest is the reference of all others: without it none of them can be compared.
    return [
        next((rank for rank in row if rank in asked), row[0]) for row in (*rows[-1:], *rows[:-1])
    ]


MOST_ABOUT = 256
"""The most ranks named by findings that the other nodes are told of."""
MOST_WHOLE_BYTES = 8 << 20
"""A greater report goes to the other nodes only in part, however few they are."""


def brief(report: Mapping[str, Any]) -> dict[str, Any]:
    """Findings and all that concerns the run stay; of ranks and hosts those that findings name."""
    named: dict[str, None] = {}
    for finding in report["findings"]:
        named.update(dict.fromkeys(map(str, finding["culprits"][:MOST_ABOUT])))
        named.update(dict.fromkeys(finding["ranks"]))
    about = set(list(named)[:MOST_ABOUT])
    ranks = {number: row for number, row in report["ranks"].items() if number in about}
    hosts = report.get("hosts", {})
    told = {host: rows for host, rows in hosts.items() if any(str(one) in about for one in rows)}
    left_out = len(report["ranks"]) - len(ranks)
    note = f"this report has {len(ranks)} of the ranks; {left_out} more are in the head's report"
    notes = [*report.get("notes", ()), *([note] if left_out else [])]
    return {**report, "ranks": ranks, "hosts": told, "ddp": [], "notes": notes}


def packed(report: Mapping[str, Any], few: bool = False) -> bytes:
    """Packs the report for the wire: whole to `few` nodes, unless there are very many ranks on
    them."""
    text = _text(report) if few else b""
    if not 0 < len(text) <= MOST_WHOLE_BYTES:
        text = _text(brief(report))
    return zlib.compress(text, 1)


def _text(report: Mapping[str, Any]) -> bytes:
    return json.dumps(report, separators=(",", ":"), default=str).encode()


def unpacked(blob: bytes) -> dict[str, Any]:
    """The opposite; empty for what is none."""
    try:
        return object_of(inflated(blob))
    except PatchError:
        return {}
