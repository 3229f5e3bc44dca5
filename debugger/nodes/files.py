"""Files that grow, or are replaced, as they go from a node to its head, and from the head to a node
on which somebody looks at the run of all nodes: logs, events, stacks, faults; and to the head
alone the values of a training.

The faults that a node has injected go to the head as it needs them: its ranks' faults are in the
run's one report. A node tells the faults of its plan by their text, for the head may have others,
and in another order: one that only this node's program asks for is added to the head's plan. What
has happened is added to the head's `injected.jsonl`, by the head's clock and the head's numbers, so
that every reader of its run directory sees the faults of all nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..faults.injected import FILE, FaultWatch, entry
from ..faults.plan import Fault, add, load
from ..faults.spec import SpecError, parse
from ..record import steady_clock
from ..record.reading import copies
from ..record.safe_files import append, object_of, open_regular, whole
from .messages import Message

LOG = re.compile(r"logs/(\d{1,7})\.(?:jsonl|out|err)(?:\.1)?(?:\.times)?")
VALUES = re.compile(r"ranks/pid-\d{1,10}\.values(?:\.1)?")
REPLACED = ("faults.json", "stacks/stacks.json", "stacks/stacks.txt")
"""These are written as a whole, each time."""
GROWING = ("events.jsonl", "injected.jsonl")
"""Lines with the time at which something has happened."""
_TIMES = ("time_ns", "happened_ns")
WHILE_RUNNING_BYTES = 16 << 10
"""At most so much of logs in one message while the ranks run; what is left follows at the end."""
PART_BYTES = 256 << 10
"""Goes in one message, about: on a slow network a greater one would take longer to arrive than its
sender may be silent."""
MOST_LOGS_BYTES = 256 << 20
"""The most that is told at the end of what was not told before."""
MOST_FILE_BYTES = 256 << 20


def logs_of(directory: Path) -> dict[str, int]:
    """Returns the logs of that run directory, each with its rank. Raises OSError."""
    names = (LOG.fullmatch(f"logs/{one}") for one in sorted(os.listdir(directory / "logs")))
    return {one[0]: int(one[1]) for one in names if one is not None}


class FileSource:
    """The sender: what has changed of the logs below a run directory since it was told last, and of
    the `others`, files of the whole run. `values`: and of the values, which come last."""

    def __init__(self, directory: Path, others: Collection[str] = (), values: bool = False) -> None:
        self._directory = directory
        self._others = others
        self._values = values
        self._told: dict[str, tuple[tuple[int, int], int]] = {}
        """By name: which file of that name it was, and how much of it was told."""
        self.without: Collection[int] = ()
        """The ranks whose logs the receiver has itself."""

    def anew(self) -> None:
        """Nothing counts as told."""
        self._told.clear()

    def next(self, kind: str, most_bytes: int = PART_BYTES, **more: Any) -> Message | None:
        """Returns the next part of what is new, with `more`; None where that is nothing."""
        names = [*self._others]
        with contextlib.suppress(OSError):
            logs = logs_of(self._directory)
            names += [name for name, rank in logs.items() if rank not in self.without]
        if self._values:
            with contextlib.suppress(OSError):
                ranks = (f"ranks/{one}" for one in sorted(os.listdir(self._directory / "ranks")))
                names += [name for name in ranks if VALUES.fullmatch(name)]
        pieces: list[list[Any]] = []
        blob = b""
        for name in names:
            if len(blob) >= most_bytes:
                break
            with contextlib.suppress(OSError):
                at, data, total = self._added(name, most_bytes - len(blob))
                if data:
                    pieces.append([name, at, len(data), total])
                    blob += data
        return Message(kind, {"pieces": pieces, **more}, blob) if pieces else None

    def _added(self, name: str, most_bytes: int) -> tuple[int, bytes, int]:
        with open(open_regular(self._directory / name), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            mark = (status.st_ino, status.st_mtime_ns if name in REPLACED else 0)
            known, at = self._told.get(name, (mark, 0))
            if mark != known or size < at:
                at = 0  # another file has taken its place: what was there is now `<name>.1`
            data = os.pread(file.fileno(), min(most_bytes, size - at), at)
        if name in GROWING:
            data = data[: data.rfind(b"\n") + 1]
        self._told[name] = mark, at + len(data)
        return at, data, size


class FileCopies:
    """The receiver: copies below a run directory, which are told to nobody else. A log that is
    there already, of a rank of this node, is left alone."""

    def __init__(self, directory: Path, others: Collection[str] = ()) -> None:
        self._directory = directory
        self._others = others
        self._ours: set[str] = set()

    def apply(self, data: Mapping[str, Any], blob: bytes, node: int = 0) -> None:
        """`node`: that of which there may be values. Raises ValueError, TypeError or KeyError for
        what makes no sense, and OSError."""
        shift_ns = whole(data.get("shift_ns", 0)) + steady_clock.offset_ns()
        start = 0
        for name, at, length, total in data["pieces"]:
            piece = blob[start : start + length]
            start += length
            is_log = LOG.fullmatch(str(name)) is not None
            is_values = bool(node and VALUES.fullmatch(str(name)))
            if not (is_log or is_values) and name not in self._others:
                raise ValueError("another node reports a file that is no log, and none of the run")
            if not 0 <= at <= at + length <= total or at > MOST_FILE_BYTES:
                raise ValueError("another node reports a file that is none")
            if is_log:
                if self._is_ours(name):
                    self._write(name, at, piece)
            elif is_values:
                self._write(f"ranks/{copies.prefix(node)}{Path(name).name}", at, piece)
            elif name in GROWING:
                self._write(name, at, _shifted(piece, shift_ns), appended=True)
            else:
                folder, _, last = name.rpartition("/")
                begun = f"{folder}/.{last}.begun" if folder else f".{last}.begun"
                self._write(begun, at, piece)
                if at + length == total:
                    os.replace(self._directory / begun, self._directory / name)

    def _is_ours(self, name: str) -> bool:
        if name not in self._ours:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._directory / name, flags, 0o600))
                self._ours.add(name)
        return name in self._ours

    def _write(self, name: str, at: int, data: bytes, appended: bool = False) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._directory / name, flags, 0o600), "wb", buffering=0) as file:
            if at == 0:
                file.truncate(0)
            file.seek(0 if appended else at, os.SEEK_END if appended else os.SEEK_SET)
            file.write(data)


def _shifted(lines: bytes, shift_ns: int) -> bytes:
    """The same with times of this host's clock."""
    found = []
    for line in lines.splitlines():
        row = object_of(line)
        for name in _TIMES:
            if type(row.get(name)) is int:
                row[name] += shift_ns
        found.append(json.dumps(row).encode() + b"\n")
    return b"".join(found)


MOST_ROWS = 100_000
"""The most rows of one node."""
MOST_FAULTS = 10_000


def plan_message(directory: Path) -> Message:
    """The head's plan, for the ranks of other nodes."""
    try:
        found = load(directory)
    except (OSError, ValueError, KeyError, TypeError):
        found = None  # a program has written it; the report says so
    return Message("plan", {"faults": [one.text for one in found.faults] if found else []})


def take_plan(directory: Path, data: Mapping[str, Any]) -> None:
    """Adds, on a node, what its own plan has not. Raises ValueError, KeyError or TypeError for what
    makes no sense, and OSError."""
    texts = [str(text) for text in data["faults"]]
    if len(texts) > MOST_FAULTS:
        raise ValueError("the head reports more faults than a run has")
    if texts:
        add(directory, _parsed(texts))


def _parsed(texts: Iterable[str]) -> list[Fault]:
    """Raises ValueError."""
    try:
        return [parse(text) for text in texts]
    except SpecError as error:
        raise ValueError(f"another node's plan has a fault that is none: {error}") from None


class InjectedSource:
    """A node's side: what it has not told yet. Times go by its monotonic clock."""

    def __init__(self, directory: Path) -> None:
        self._watch = FaultWatch(directory)
        self._plan_told: list[list[Any]] = []
        self._rows_told = 0

    def anew(self) -> None:
        """Nothing counts as told. What the head has already, it knows by its number."""
        self._plan_told, self._rows_told = [], 0

    def next(self) -> Message | None:
        """Returns what has happened since the last call; None where nothing has."""
        self._watch.look()
        faults = self._watch.plan.faults if self._watch.plan is not None else ()
        plan = [[fault.number, fault.text] for fault in faults]
        rows = self._watch.entries[self._rows_told :]
        if plan == self._plan_told and not rows:
            return None
        add_ns = time.monotonic_ns() - time.time_ns()
        told = [asdict(one) | {"time_ns": one.time_ns + add_ns} for one in rows]
        message = Message("injected", {"plan": plan, "first": self._rows_told, "rows": told})
        self._plan_told, self._rows_told = plan, self._rows_told + len(rows)
        return message


@dataclass(slots=True)
class InjectedCopies:
    """The head's side, of one node; `directory` is the head's run directory."""

    directory: Path
    _numbers: dict[int, int] = field(default_factory=dict)
    _rows: int = 0

    def apply(self, data: Mapping[str, Any], offset_ns: int) -> None:
        """`offset_ns` added to the node's monotonic clock gives our Unix time. Raises ValueError,
        TypeError or KeyError for what makes no sense, and OSError."""
        plan, first, rows = data["plan"], data["first"], data["rows"]
        if len(plan) > MOST_FAULTS or self._rows + len(rows) > MOST_ROWS:
            raise ValueError("a node reports more faults than a run has")
        self._adopt({int(number): str(text) for number, text in plan})
        for row in rows[max(0, self._rows - int(first)) :]:
            self._rows += 1
            number = self._numbers.get(row["fault"])
            if number is None:
                raise ValueError("a node reports a fault that is in no plan")
            time_ns = int(row["time_ns"]) + offset_ns
            line = json.dumps({**row, "fault": number, "time_ns": time_ns}).encode()
            if entry(line) is None:
                raise ValueError("what a node reports of a fault cannot be read")
            append(self.directory / FILE, line + b"\n")

    def _adopt(self, texts: Mapping[int, str]) -> None:
        """Find our numbers of these faults; what our plan has not is added to it."""
        if not texts.keys() - self._numbers.keys():
            return
        ours = load(self.directory)
        known = {one.text for one in ours.faults} if ours is not None else set()
        new = _parsed(text for text in texts.values() if text not in known)
        whole = add(self.directory, new) if new or ours is None else ours
        numbers = {one.text: one.number for one in whole.faults}
        self._numbers = {number: numbers[text] for number, text in texts.items()}
