"""The files of a run directory beside the flight records: samples, events, logs, stacks, and the
report with its words beside the findings: of a plan what was undecided and which ranks do the same,
of dumps of another recorder what they are and what is missing. They may come from anywhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..diagnosis.findings import CallIs
from ..record.log_file import readable
from ..record.runs.log_reader import record_on
from ..record.safe_files import AddedLines, end_of, mark_of, object_of
from ..record.safe_text import shown_of
from ..record.snapshot import CallSite, is_own
from ..record.wording import site_text
from ..reports import planned
from ..reports.stored import SCHEMA
from .picture import LogLine, Problem, Progress, ReportLine, Source, StackNode, Stacks, Stood, Usage
from .text import safe

TAIL_BYTES = 1 << 16
MOST_SAMPLE_BYTES = 1 << 24
"""The most bytes of one sample of host.jsonl: 128 bytes for each of 131,072 ranks."""
MOST_SAMPLES = 1000
LOG_BYTES = 1 << 18
MOST_LOG_LINES = 2000
MOST_LOG_TEXT = 8000
MOST_EVENTS_BYTES = 1 << 20
MOST_STACK_DEPTH = 400
MOST_TABLE_BYTES = 1 << 14
MOST_TABLE_WIDTH = 400
MOST_RANK_DIGITS = 9
MOST_NUMBER = 1 << 63


def tail(path: Path, most_bytes: int) -> bytes:
    """The end of a file, from the start of a line on; empty where it cannot be read."""
    try:
        data, before = end_of(path, most_bytes)
    except OSError:
        return b""
    return data.partition(b"\n")[2] if before else data


def table_in(path: Path) -> tuple[str, ...]:
    """The lines of a table for people."""
    rows = tail(path, MOST_TABLE_BYTES).decode(errors="replace").splitlines()
    return tuple(safe(row, MOST_TABLE_WIDTH) for row in rows)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in _list(value) if isinstance(row, dict)]


def _ranked(value: object) -> list[tuple[int, dict[str, Any]]]:
    """Returns the values of an object whose keys are numbers of ranks."""
    return [
        (int(rank), seen)
        for rank, seen in _dict(value).items()
        if isinstance(seen, dict) and rank.isdecimal() and len(rank) <= MOST_RANK_DIGITS
    ]


def _ranks(value: object) -> tuple[int, ...]:
    return tuple(one for one in _list(value) if type(one) is int and 0 <= one < MOST_RANK)


class HostSamples:
    """The newest sample of host.jsonl."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = (0, 0)
        self._most_bytes = TAIL_BYTES
        self.by_rank: Mapping[int, Usage] = {}
        self.has_gpus = False

    def poll(self) -> None:
        """Read it again if it has grown."""
        mark = mark_of(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        while True:
            lines = tail(self._path, self._most_bytes).rsplit(b"\n", MOST_SAMPLES)[-MOST_SAMPLES:]
            value = next((found for one in reversed(lines) if (found := object_of(one))), None)
            if value is not None or self._most_bytes >= min(mark[1], MOST_SAMPLE_BYTES):
                break
            self._most_bytes *= 4  # a sample of very many ranks is a long line
        self.by_rank = _usage(value or {})
        self.has_gpus = bool(value and value.get("gpus"))


def _usage(sample: Mapping[str, Any]) -> dict[int, Usage]:
    gpus: dict[str, tuple[float, int]] = {}
    for device in _rows(sample.get("gpus")):
        for name, used in _dict(device.get("ranks")).items():
            gpus[name] = (device.get("use_percent", 0), used or 0)
    found = {}
    for rank, seen in _ranked(sample.get("ranks")):
        gpu = gpus.get(str(rank), (None, None))
        found[rank] = Usage(
            number(seen.get("cpu_percent")),
            whole(seen.get("rss_bytes")),
            whole(seen.get("threads")),
            number(gpu[0]),
            whole(gpu[1]),
        )
    return found


def number(value: object) -> float | None:
    """A number from a file, None for anything else: JSON as Python reads it has Infinity and NaN,
    and whole numbers that no float can hold."""
    return value if isinstance(value, int | float) and abs(value) < MOST_NUMBER else None


def whole(value: object) -> int | None:
    """Returns a number without what follows the point."""
    found = number(value)
    return None if found is None else int(found)


def words(value: object) -> str:
    """A list of words, a command say, as one text; what is no list as it is."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


class Events:
    """events.jsonl: what the supervisor has told, notices and findings."""

    def __init__(self, path: Path) -> None:
        self._lines = AddedLines(path, MOST_EVENTS_BYTES)
        self.found: list[Problem] = []
        self.notices: list[tuple[int, str]] = []

    def poll(self) -> None:
        """Take in the lines that were added."""
        for row in self._lines.new():
            event = object_of(row)
            message = safe(event.get("message", ""), 2000)
            if event.get("kind") == "notice":
                time_ns = event.get("time_ns")
                self.notices.append((whole(time_ns) or 0, message))
            elif event.get("kind") == "finding":
                self.found.append(_found({**event, "kind": event.get("finding")}, "supervisor"))
        del self.notices[:-20], self.found[:-100]


def report_in(path: Path, document: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The report of a run, and why it is left out, where it is there but of no use."""
    schema = document.get("schema")
    if schema == SCHEMA or mark_of(path) == (0, 0):
        return document, ()
    if isinstance(schema, str) and schema.startswith("distdebug.report/"):
        why = f"by another version of distdebug ({safe(schema, 40)}; this is {SCHEMA})"
        return {}, (f"{path}: was written {why}",)
    return {}, (f"{path}: is damaged, or cannot be read",)


def found_in_report(report: Mapping[str, Any]) -> list[Problem]:
    """The findings of a report.json, the verdict first."""
    return [_found(row, "report") for row in _rows(report.get("findings"))]


def _found(row: Mapping[str, Any], told_by: str) -> Problem:
    return Problem(
        kind=safe(row.get("kind", "?"), 40),
        severity=safe(row.get("severity", "error"), 10),
        message=safe(row.get("message", ""), 2000),
        culprits=tuple(one for one in _list(row.get("culprits")) if isinstance(one, int)),
        details=tuple(map(safe, _list(row.get("details")))),
        told_by=told_by,
    )


def stood_in_report(report: Mapping[str, Any]) -> dict[int, Stood]:
    """Returns how the ranks stood at the verdict, as a report.json tells it."""
    found: dict[int, Stood] = {}
    for document in (report, *map(_dict, _list(report.get("findings"))[:1])):
        for rank, seen in _ranked(document.get("ranks")):
            site, place = "", _dict(seen.get("location"))
            if isinstance(place.get("line"), int):
                file, function = str(place.get("file", "?")), str(place.get("function", "?"))
                through = str(place.get("through", ""))
                site = safe(site_text(CallSite(file, place["line"], function, through)))
            found[rank] = Stood(
                safe(seen.get("state") or "", 80),
                safe(seen.get("call") or ""),
                site,
                last=CallIs.in_report(seen) is CallIs.LAST,
            )
    return found


class RankLogs:
    """The ends of the ranks' logs, each read again only when it has grown."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._progress: dict[int, tuple[tuple[int, int], Progress]] = {}
        self._lines: dict[Path, tuple[tuple[int, int], tuple[LogLine, ...]]] = {}

    def progress(self, rank: int) -> Progress:
        """The step and the loss that the program last logged."""
        path = self._directory / f"{rank}.jsonl"
        mark = mark_of(path)
        known_mark, known = self._progress.get(rank, ((0, 0), Progress()))
        if known_mark != mark:
            step = loss = ""
            for row in reversed(tail(path, 4096).split(b"\n")):
                value = object_of(row) if b'"step"' in row or b'"loss"' in row else {}
                step = step or (safe(value["step"], 12) if value.get("step") is not None else "")
                # log.info("loss", value=0.5), or any event with a field of that name
                said = value.get("value" if value.get("event") == "loss" else "loss")
                if not loss and said is not None:
                    loss = f"{said:.4g}" if isinstance(said, float) else safe(said, 12)
                if step and loss:
                    break
            known = Progress(step or known.step, loss or known.loss)
            self._progress[rank] = (mark, known)
        return known

    def lines(self, rank: int) -> dict[str, tuple[LogLine, ...]]:
        """The last lines by source."""
        return {
            "stdout": self._read(self._directory / f"{rank}.out", structured=False),
            "stderr": self._read(self._directory / f"{rank}.err", structured=False),
            "log": self._read(self._directory / f"{rank}.jsonl", structured=True),
        }

    def _read(self, path: Path, *, structured: bool) -> tuple[LogLine, ...]:
        mark = mark_of(path)
        known = self._lines.get(path)
        if known is None or known[0] != mark:
            rows = tail(path, LOG_BYTES).split(b"\n")[-MOST_LOG_LINES:]
            if rows and not rows[-1]:
                rows.pop()
            made = []
            for row in rows:
                if not structured:
                    made.append(LogLine(safe(shown_of(row), 2000)))
                elif (record := record_on(row)) is not None:
                    texts = readable(record).split("\n")
                    first, *below = (safe(one, MOST_LOG_TEXT) for one in texts)
                    level = safe(record.get("level", ""), 10).lower()
                    made.append(LogLine(first, level, tuple(below)))
            known = self._lines[path] = (mark, tuple(made))
        return known[1]


def stacks_of(document: Mapping[str, Any], taken_ns: int) -> Stacks:
    """The stacks.json of a run; whatever is not as it should be is left out."""
    threads = tuple(
        (safe(one.get("name", "?"), 80), _ranks(one.get("ranks")), _nodes(one.get("tree"), 0))
        for one in _rows(document.get("threads"))
    )
    return Stacks(taken_ns, threads, tuple(map(safe, _list(document.get("problems")))))


_QUIET = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen")


def _nodes(rows: object, depth: int) -> tuple[StackNode, ...]:
    found = []
    for row in _rows(rows) if depth <= MOST_STACK_DEPTH else ():
        frames, quiet = [], []
        for frame in _rows(row.get("frames")):
            file = str(frame.get("file", ""))
            place = os.path.basename(file) + (f":{frame['line']}" if frame.get("line") else "")
            frames.append(safe(f"{frame.get('function', '?')} ({place})", 200))
            of_others = is_own(file) or any(part in file for part in _QUIET)
            quiet.append(bool(frame.get("native")) or of_others)
        found.append(
            StackNode(
                _ranks(row.get("ranks")),
                tuple(frames),
                tuple(quiet),
                tuple(map(safe, _list(row.get("notes")))),
                _nodes(row.get("children"), depth + 1),
            )
        )
    return tuple(found)


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
        try:
            notices = [*planned.notices(report, MOST_PLACES)]
            alike = planned.alike(report, MOST_CLASSES)
        except (LookupError, TypeError, ValueError, AttributeError):
            return (ReportLine("", "what the report tells of the plan is damaged", doubt=True),)
        told = [ReportLine(word, safe(text, 2000), doubt=True) for word, text in notices]
        return (*told, *([ReportLine("alike: ", safe(alike, 2000))] if alike else []))
    if source is Source.DUMPS:
        notes = _list(report.get("notes"))[:MOST_NOTES]
        return tuple(ReportLine("", safe(row, 2000)) for row in notes)
    return ()
