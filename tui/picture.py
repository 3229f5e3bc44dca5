"""The frozen picture of a run that the reader thread hands to the screen."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..diagnosis.facts.waits import Waits
from ..record.kinds import kind_of
from ..record.snapshot import Call, GroupKey, Rank


class State(enum.Enum):
    """The state of a rank, in one word of the overview; the gravest first."""

    DEAD = "dead"
    STOPPED = "stopped"
    LATE = "late"
    BREAKPOINT = "breakpoint"
    UNSEEN = "not seen"
    STARTING = "starting"
    COMPUTING = "computing"
    IN_CALL = "in a call"
    WAITING = "waiting"
    ENDED = "ended"
    FINISHED = "finished"


class Letter(enum.Enum):
    """The doing of a rank at a time, as a letter of its strip."""

    COMPUTING = "."
    BACKGROUND = "="
    CALLING = "c"
    WAITING = "w"
    PAUSED = "b"
    NOTHING = " "


class Stage(enum.Enum):
    """The stage of the run."""

    READING = "being read"
    NOTHING = "nothing to show"
    LIVE = "live"
    ENDED = "ended"
    KILLED = "killed"
    GONE = "gone"


class Source(enum.Enum):
    """The source of the run directory."""

    RUN = "run"
    PLAN = "plan"
    DUMPS = "dumps"

    @property
    def stands(self) -> bool:
        """Whether its ranks are shown as they stand where it ends: no process of theirs has ended,
        as those of a run have in the end."""
        return self is not Source.RUN


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A sentence of a report beside its findings, and the word before it. `doubt`: the report may
    be wrong for it. All texts are printable."""

    word: str
    text: str
    doubt: bool = False


@dataclass(frozen=True, slots=True)
class Stood:
    """The state of a rank at the verdict, or at the end: `waits in`, `all_reduce(...)`, `train.py:8
    in f`. All texts are printable; "" is unknown. `last`: the call is the one before that state."""

    state: str = ""
    call: str = ""
    site: str = ""
    last: bool = False

    @property
    def doing(self) -> str:
        """The state and the call in one sentence."""
        if not self.call:
            return self.state or "not known"
        joined = ", last call " if self.last and self.state else " "
        return f"{self.state}{joined}{self.call}".strip()


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding, from whoever found it first. All texts are printable. `told_by` is `supervisor`,
    `report`, or `app` for what this app has diagnosed itself."""

    kind: str
    severity: str
    message: str
    culprits: tuple[int, ...] = ()
    details: tuple[str, ...] = ()
    told_by: str = "app"
    proven: bool = True

    @property
    def title(self) -> str:
        """The kind as the printed report has it."""
        return kind_of(self.kind).title

    @property
    def is_error(self) -> bool:
        return self.severity == "error"


@dataclass(frozen=True, slots=True)
class Usage:
    """The share of its machine that a rank takes (None: not known). `gpu_percent` is its
    device's."""

    cpu_percent: float | None = None
    rss_bytes: int | None = None
    threads: int | None = None
    gpu_percent: float | None = None
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that the program has logged: the fields `step` and `loss` of its last lines."""

    step: str = ""
    loss: str = ""


@dataclass(frozen=True, slots=True)
class RankRow:
    """A row of the overview. Texts are printable; times are Unix time in nanoseconds, 0: unknown.

    `lag`: by how many collectives the rank is behind the front runner of a group. `is_message`: its
    call is point to point. `ending`: of a dead rank the signal or the status, in ten cells.
    """

    rank: int
    state: State
    words: str
    call: str = ""
    group: str = ""
    seq: int | None = None
    since_ns: int = 0
    lag: int = 0
    site: str = ""
    culprit: bool = False
    usage: Usage = field(default_factory=Usage)
    progress: Progress = field(default_factory=Progress)
    host: str = ""
    pid: int = 0
    is_message: bool = False
    ending: str = ""

    @property
    def stood(self) -> Stood:
        """The row as a report would tell it."""
        state = "" if self.state in (State.IN_CALL, State.WAITING, State.ENDED) else self.words
        return Stood(state, self.call, self.site, last=bool(state))


@dataclass(frozen=True, slots=True)
class Track:
    """The strip of one rank: a letter (see `Letter`) for each part of the axis, all of the same
    length; " " where it did not run, or nothing is known. `waits` and `calls`: the shares of its
    time in which it waited for others, and in which it was in calls that all had entered."""

    letters: str
    waits: float
    calls: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The strips of the ranks over the last `span_ns`, by rank."""

    span_ns: int
    tracks: Mapping[int, Track]


@dataclass(frozen=True, slots=True)
class Focus:
    """The screen's present view: the reader gathers details for that alone."""

    view: str = "overview"
    rank: int | None = None
    group: GroupKey | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """The last collectives of one group: `calls` by (rank, seq); `ranks` are the rows shown."""

    group: GroupKey
    name: str
    size: int
    ranks: tuple[int, ...]
    seqs: tuple[int, ...]
    calls: Mapping[tuple[int, int], Call]
    issued: Mapping[int, int]
    odd: Mapping[int, frozenset[int]]
    """Per sequence number: the ranks whose call differs from that of most."""
    parted: tuple[int, str] | None = None
    """The call at which the ranks' lines part, and who has done what there."""

    @property
    def first_wrong(self) -> int | None:
        """The call shown at which lines part, or else the first one that differs."""
        if self.parted is not None and self.parted[0] in self.seqs:
            return self.parted[0]
        return min(self.odd, default=None)


@dataclass(frozen=True, slots=True)
class RankDetail:
    """The details of one rank. `logs` are printable lines by source (`stdout`, `stderr`, `log`)."""

    rank: int
    calls: tuple[Call, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, tuple[LogLine, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a rank has printed, or a record as `distdebug logs` shows it, with the lines
    `below` it; `level` is "" for what it printed."""

    text: str
    level: str = ""
    below: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StackNode:
    """Frames that some ranks have in common, outermost first, and where they part."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...]
    quiet: tuple[bool, ...]
    """Per frame: it belongs to torch, to Python's library or to this tool."""
    notes: tuple[str, ...]
    children: tuple[StackNode, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """The merged stacks on disk. `threads` are (name, ranks, tree)."""

    taken_ns: int = 0
    threads: tuple[tuple[str, tuple[int, ...], tuple[StackNode, ...]], ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A run at one moment. `problem` says why there is nothing, or nothing new, to show."""

    directory: Path
    now_ns: int = 0
    stage: Stage = Stage.NOTHING
    problem: str = ""
    command: str = ""
    host: str = ""
    outcome: str = ""
    exit_code: int | None = None
    started_ns: int = 0
    ended_ns: int = 0
    world_size: int = 0
    backend: str = ""
    calls: int = 0
    calls_per_s: float | None = None
    supervised: bool = True
    has_gpus: bool = False
    found: tuple[Problem, ...] = ()
    notices: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    source: Source = Source.RUN
    told: tuple[ReportLine, ...] = ()
    """The words of a plan's report, or of one of dumps, beside its findings."""
    table: tuple[str, ...] = ()
    """Calls, bytes and times by group and op, of a plan: lines of text."""
    states: Mapping[int, State] = field(default_factory=dict)
    rows: Mapping[int, RankRow] = field(default_factory=dict)
    ranks: Mapping[int, Rank] = field(default_factory=dict)
    waits: Waits = field(default_factory=Waits)
    stood: Mapping[int, Stood] = field(default_factory=dict)
    """By rank, for a run that has a report."""
    groups: tuple[tuple[GroupKey, str], ...] = ()
    timeline: Timeline | None = None
    """The strips, for a world that has a row for each rank."""
    focus: Focus = field(default_factory=Focus)
    matrix: Matrix | None = None
    detail: RankDetail | None = None
    stacks: Stacks | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.stage in (Stage.ENDED, Stage.KILLED)

    @property
    def verdict(self) -> Problem | None:
        """The error to name first."""
        return next((one for one in self.found if one.is_error), None)

    def parties(self) -> list[tuple[Stood, list[int], bool]]:
        """Ranks that stood alike, culprits apart from others (True) and first."""
        standing = self.stood or {rank: row.stood for rank, row in self.rows.items()}
        found: dict[tuple[Stood, bool], list[int]] = {}
        for rank, stood in standing.items():
            found.setdefault((stood, rank in self.culprits), []).append(rank)
        rows = [(stood, ranks, here) for (stood, here), ranks in found.items()]
        return sorted(rows, key=lambda row: (not row[2], row[1]))

    @property
    def culprits(self) -> frozenset[int]:
        """The ranks to look at first: the verdict's, or, without one, those of warnings."""
        found = self.verdict
        if found is not None:
            return frozenset(found.culprits)
        return frozenset(rank for one in self.found for rank in one.culprits)
