"""A run as a Prometheus textfile, for node_exporter's textfile collector or anything that reads the
exposition format: calls, bytes and seconds for each group, op and rank, findings, heartbeats.

Counters count from the start of the run. How many collectives a rank called in a group is exact;
what is told of each op comes from the ring of its last calls, which is looked at while the run
lives: calls that were overwritten before that are counted as unseen. Of a call, its bytes are what
the rank gives into it or, where it gives nothing, what it gets; its seconds are from its begin to
its completion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..record.layout import RING, Activity, CallState, Phase
from ..record.safe_files import replacing
from ..record.signature import call_bytes
from ..record.snapshot import Call, GroupKey, Rank
from ..record.wording import printable
from .stored import check_replaceable

PREFIX = "distdebug_"
_FIRST = f"# HELP {PREFIX}"
_MOST_LABEL = 200
_ENDED = (CallState.COMPLETED, CallState.FAILED)

Labels = Mapping[str, str]


@dataclass(slots=True)
class _Op:
    """The calls of one rank of one op in one group."""

    calls: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _CountedProcess:
    """The calls of a process that have been counted."""

    number: int = 0
    open: list[int] = field(default_factory=list)


class CallTotals:
    """The calls of the ranks of a run, counted while their rings are read."""

    def __init__(self) -> None:
        self.ops: dict[tuple[int, GroupKey, str, str], _Op] = {}
        """By rank, group, its description and op."""
        self.collectives: dict[tuple[int, GroupKey, str], int] = {}
        self.unseen: dict[int, int] = {}
        self._processes: dict[tuple[int, int, int], _CountedProcess] = {}
        self._issued: dict[tuple[int, int, int, GroupKey], int] = {}

    def take(self, ranks: Iterable[Rank]) -> None:
        """Count what has come since the last time."""
        for rank in ranks:
            self._take(rank)

    def _take(self, rank: Rank) -> None:
        process = (rank.rank, rank.pid, rank.started_ns)
        for key, group in rank.groups.items():
            here = (*process, key)
            before = self._issued.get(here, 0)
            if group.issued >= before:
                place = (rank.rank, key, group.desc)
                self._issued[here] = group.issued
                self.collectives[place] = self.collectives.get(place, 0) + group.issued - before
        self.unseen.setdefault(rank.rank, 0)
        if rank.history is None:
            return
        at = self._processes.setdefault(process, _CountedProcess())
        for number in at.open[:]:
            call = rank.history.call(number)
            if call is None or call.state in _ENDED:
                at.open.remove(number)
                if call is not None:
                    self._of(rank, call).seconds += _seconds(call)
        while True:
            call = rank.history.call(at.number)
            if call is None:
                if at.number >= rank.calls:
                    return
                found = max(at.number + 1, rank.calls - RING)
                self.unseen[rank.rank] += found - at.number
                at.number = found
                continue
            at.number += 1
            one = self._of(rank, call)
            one.calls += 1
            one.size_bytes += call_bytes(call.signature)
            if call.state in _ENDED:
                one.seconds += _seconds(call)
            else:
                at.open.append(call.number)

    def _of(self, rank: Rank, call: Call) -> _Op:
        group = rank.groups.get(call.group)
        place = (rank.rank, call.group, group.desc if group else "", call.signature.op)
        return self.ops.setdefault(place, _Op())


def _seconds(call: Call) -> float:
    return max(0, call.completed_ns - call.issued_ns) / 1e9 if call.completed_ns else 0.0


@dataclass(frozen=True, slots=True)
class FindingLabels:
    """A finding, as far as it is shown."""

    kind: str
    severity: str
    proven: bool
    culprits: Sequence[int]


def found_in(report: Mapping[str, Any]) -> list[FindingLabels]:
    """The findings of a report.json."""
    return [
        FindingLabels(one["kind"], one["severity"], one["proven"], one["culprits"])
        for one in report.get("findings", ())
    ]


@dataclass(frozen=True, slots=True)
class ExportedState:
    """A run at one moment. `outcome`: `running`, or what it came to, with its exit code."""

    ranks: Mapping[int, Rank]
    world_size: int
    findings: Sequence[FindingLabels]
    now_ns: int
    run: str = ""
    outcome: str = "running"
    exit_code: int | None = None
    lives: bool = True


# -- the text -----------------------------------------------------------------------------------


_METRICS = {
    "run_info": "The run, and what it came to.",
    "written_time_seconds": "When this was written (Unix time).",
    "world_size": "Ranks that the run has.",
    "exit_code": "Of the run.",
    "findings": "Findings so far.",
    "finding": "Each finding, with the ranks to look at first.",
    "rank_up": "Whether the rank's process lives.",
    "heartbeat_age_seconds": "How long ago the heartbeat of a rank that lives was last seen.",
    "waiting_seconds": "For how long a rank has waited in the call that it is in.",
    "collectives_total": "Collectives that a rank has called in a group.",
    "calls_total": "Calls of a rank that were seen.",
    "call_bytes_total": "What it gave into them or, where nothing, what it got.",
    "call_seconds_total": "From the begin of each to its completion.",
    "calls_unseen_total": "Calls that were overwritten before they were looked at.",
}
"""What each metric tells. Those that end in `_total` are counters, the others gauges."""
Samples = Iterable[tuple[Labels, float]]


def _exposition(metrics: Iterable[tuple[str, Samples]]) -> Iterator[str]:
    """Yields the lines, metric after metric, each with its samples together, as the format asks."""
    for metric, samples in metrics:
        name = PREFIX + metric
        yield f"# HELP {name} {_METRICS[metric]}"
        yield f"# TYPE {name} {'counter' if metric.endswith('_total') else 'gauge'}"
        sums: dict[str, float] = {}  # names that are cut, or made to look like others, may be equal
        for labels, value in samples:
            shown = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
            sums[shown] = sums.get(shown, 0) + value
        for shown, value in sums.items():
            yield f"{name}{{{shown}}} {value:.15g}" if shown else f"{name} {value:.15g}"


def escaped(text: str) -> str:
    """A label's value: on one line, not longer than names are, and with the format's escapes."""
    text = printable(text, _MOST_LABEL)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render(totals: CallTotals, state: ExportedState) -> str:
    """Returns the whole file."""
    metrics = (*_of_the_run(state), *_of_ranks(state), *_of_calls(totals))
    return "\n".join(_exposition(metrics)) + "\n"


def _of_the_run(state: ExportedState) -> Iterator[tuple[str, Samples]]:
    yield "run_info", [({"run": state.run, "outcome": state.outcome}, 1)]
    yield "written_time_seconds", [({}, state.now_ns / 1e9)]
    yield "world_size", [({}, state.world_size)]
    if state.exit_code is not None:
        yield "exit_code", [({}, state.exit_code)]
    counts = {"error": 0, "warning": 0}
    for one in state.findings:
        counts[one.severity] = counts.get(one.severity, 0) + 1
    yield "findings", [({"severity": severity}, count) for severity, count in counts.items()]
    names = ("kind", "severity", "proven", "culprits")
    places = [
        (one.kind, one.severity, str(one.proven).lower(), ",".join(map(str, one.culprits[:32])))
        for one in state.findings
    ]
    yield "finding", [(dict(zip(names, place, strict=True)), 1) for place in places]


def _of_ranks(state: ExportedState) -> Iterator[tuple[str, Samples]]:
    ranks = state.ranks.items()
    up = {
        number: state.lives and rank.process.alive and rank.phase is not Phase.ENDED
        for number, rank in ranks
    }
    yield "rank_up", [({"rank": str(at), "host": rank.host}, up[at]) for at, rank in ranks]
    yield (
        "heartbeat_age_seconds",
        [
            ({"rank": str(number)}, max(0, state.now_ns - rank.heartbeat_ns) / 1e9)
            for number, rank in ranks
            if up[number] and rank.heartbeat_ns
        ],
    )
    waiting: dict[tuple[int, GroupKey, str, str], float] = {}
    for number, rank in ranks:
        for wait in rank.waits if up[number] else ():
            call = None
            if wait.activity is Activity.IN_CALL and wait.call is not None and rank.history:
                call = rank.history.call(wait.call)
            if call is not None:
                group = rank.groups.get(call.group)
                place = (number, call.group, group.desc if group else "", call.signature.op)
                since_s = max(0, state.now_ns - wait.since_ns) / 1e9
                waiting[place] = max(waiting.get(place, 0.0), since_s)
    yield "waiting_seconds", [(_labels(*at), seconds) for at, seconds in sorted(waiting.items())]


def _of_calls(totals: CallTotals) -> Iterator[tuple[str, Samples]]:
    collectives = sorted(totals.collectives.items())
    yield "collectives_total", [(_labels(*place), count) for place, count in collectives]
    ops = [(_labels(*place), one) for place, one in sorted(totals.ops.items())]
    yield "calls_total", [(labels, one.calls) for labels, one in ops]
    yield "call_bytes_total", [(labels, one.size_bytes) for labels, one in ops]
    yield "call_seconds_total", [(labels, one.seconds) for labels, one in ops]
    unseen = sorted(totals.unseen.items())
    yield "calls_unseen_total", [({"rank": str(rank)}, count) for rank, count in unseen]


def _labels(rank: int, group: GroupKey, desc: str, op: str = "") -> Labels:
    name, again = group
    labels = {"rank": str(rank), "group": f"{name}~{again}" if again else name, "desc": desc}
    return {**labels, "op": op} if op else labels


# -- the file -----------------------------------------------------------------------------------


def check(path: Path) -> None:
    """Raises UsageError where the file cannot be written, or is there and none of ours."""
    check_replaceable(path, "--prom", _FIRST, fails="read", foreign="was not written by distdebug")


def write(path: Path, text: str) -> None:
    """The file, whole or not at all; readable by others, as the umask has it, since somebody else
    collects it. Raises OSError."""
    with replacing(path, 0o666) as file:
        file.write(text.encode())
