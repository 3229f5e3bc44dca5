"""The directory in which everything of a run lies: made, found and checked here.

File names come from fixed templates, files are 0600 and directories 0700. Writing never raises:
a full disk or a vanished directory costs the record, not the run, and is reported once in
`failures`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from ..requests.supervision import Verdict
from ..safe_files import (
    MOST_JSON_BYTES,
    append,
    object_of,
    open_regular,
    parsed,
    read_regular,
    replacing,
)
from ..wording import counted, finding_line, printable

SCHEMA = "distdebug.run/1"
BASE = Path(".distdebug")
LATEST = "latest"
PACKED_SUFFIX = ".distdebug.tar.gz"
FAULTS_PLAN = "faults.json"
FAULTS_SCHEMA = "distdebug.faults/1"
FAULTS_ASKED = "inject-now.jsonl"
"""Each line {"fault": N, "time_ns": ...} asks for fault N of the plan now; the ranks that it names
see it with their next heartbeat."""
_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
_SUBDIRECTORIES = ("ranks", "logs", "stacks")


class RunDirectoryError(Exception):
    """The directory cannot be used; the message is one sentence for the user."""


class _Below:
    """The path of a file or folder in a run directory."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, directory: RunDirectory, owner: object) -> Path:
        return directory.path.joinpath(*self._parts)


@dataclass(slots=True)
class RunDirectory:
    """The directory of a run. `failures` are sentences about writes that did not succeed, each
    once; `packed` is the artefact that it was unpacked from, if it was."""

    path: Path
    failures: list[str] = field(default_factory=list)
    packed: Path | None = None
    _lock: int = -1

    ranks = _Below("ranks")
    logs = _Below("logs")
    stacks = _Below("stacks")
    run_json = _Below("run.json")
    events = _Below("events.jsonl")
    host = _Below("host.jsonl")
    exits = _Below("exits.jsonl")
    """Exit statuses that parent processes saw: {"pid", "status" (raw), "time_ns"} a line."""
    verdict = _Below("verdict.json")
    """The file by which the ranks learn of the finding that ends the run."""
    report_json = _Below("report.json")
    report_text = _Below("report.txt")
    report_html = _Below("report.html")
    """The report as one page, which `--ci` makes."""
    traffic_text = _Below("traffic.txt")
    """The table of a plan for people: calls, bytes and times by group and op."""
    junit = _Below("junit.xml")
    stacks_text = _Below("stacks", "stacks.txt")
    stacks_json = _Below("stacks", "stacks.json")

    @classmethod
    def create(cls, base: Path = BASE, explicit: Path | None = None) -> RunDirectory:
        """A new directory below `base`, or at `explicit`, which must not exist or be empty.

        `base/latest` points to it afterwards (with `explicit`, only if `base` exists).
        Raises RunDirectoryError.
        """
        base = Path(os.path.abspath(base))
        try:
            if explicit is not None:
                path = Path(os.path.abspath(explicit))
                _check_parent(path.parent)
                _make_explicit(path)
            else:
                _check_parent(base.parent)
                make_base(base)
                path = _make_new(base)
            for name in _SUBDIRECTORIES:
                (path / name).mkdir(mode=0o700)
        except OSError as error:
            raise RunDirectoryError(
                f"cannot make a run directory at {explicit or base}: {reason(error)}; "
                "choose another place with --run-dir"
            ) from error
        directory = cls(path)
        directory._lock = _lock(path)
        if not directory.write_json("run.json", {}):
            raise RunDirectoryError(f"{directory.failures[0]}; choose another with --run-dir")
        if base.is_dir() and not base.is_symlink():
            _point_latest(base, path)
        return directory

    @classmethod
    def open(cls, path: str | Path | None = None, base: Path = BASE) -> RunDirectory:
        """The run at `path`: a directory, the name of one below `base`, as far as it names one
        run, or None for the newest. Where there is no `base` here, that of a folder above counts.

        Raises RunDirectoryError where there is none, or it was not made by this tool.
        """
        base = nearest(base)
        if path is None:
            found = Path(os.path.abspath(base / LATEST))
            if not (_is_there(found) and found.is_dir()):
                raise RunDirectoryError(
                    f"there is no run below {base}/ yet; start one with `distdebug run`, "
                    "or name the directory of a run"
                )
        else:
            candidates = [Path(path)]
            if not Path(path).is_absolute():
                candidates.append(base / path)
            existing = [one for one in candidates if _is_there(one)]
            if not existing:
                names = [name for name in run_names(base) if name.startswith(str(path))]
                if len(names) > 1:
                    raise RunDirectoryError(f"{len(names)} runs begin with {path}: {names[:4]}")
                existing = [base / name for name in names]
            if not existing:
                raise RunDirectoryError(f"there is no run directory {path}")
            directories = [one for one in existing if one.is_dir()]
            if not directories:
                raise RunDirectoryError(f"{path} is a file; name the directory of a run")
            ours = [one for one in directories if why_not_ours(one) is None]
            found = Path(os.path.abspath((ours or directories)[0]))
        problem = why_not_ours(found)
        if problem is not None and (runs := runs_in(found)):
            raise RunDirectoryError(
                f"{path or found} holds {counted(len(runs), 'run')}: name one, such as "
                f"{runs[0]}, or leave it out for the newest"
            )
        if problem is not None:
            raise RunDirectoryError(f"{path or found} {problem}")
        return cls(Path(os.path.realpath(found)))

    @staticmethod
    def latest(base: Path = BASE) -> Path:
        """Returns where `open()` finds the newest run, whether there is one or not."""
        return Path(os.path.realpath(base / LATEST))

    def close(self) -> None:
        """Ends the hold on the directory: from now on `prune` may remove it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def as_known(self, sentence: str) -> str:
        """The sentence, about the artefact where it is about what was unpacked from one."""
        return sentence.replace(str(self.path), str(self.packed or self.path))

    def flight(self, rank: int) -> Path:
        return self.ranks / f"{int(rank)}.flight"

    def stdout(self, rank: int) -> Path:
        return self.logs / f"{int(rank)}.out"

    def stderr(self, rank: int) -> Path:
        return self.logs / f"{int(rank)}.err"

    def log(self, rank: int) -> Path:
        return self.logs / f"{int(rank)}.jsonl"

    def write_json(self, name: str, value: dict[str, Any], *, lasts: bool = True) -> bool:
        """Writes a file whole or not at all. `run.json` always carries the schema that marks the
        directory as ours. `lasts`: as `replacing` has it; a disk that is busy may take many seconds
        for that. Returns False, and adds to `failures`, where it fails."""
        if name == self.run_json.name:
            value = {"schema": SCHEMA, **value}
        # In pieces: as a whole the report of many ranks takes several times its size.
        pieces = json.JSONEncoder(indent=2, ensure_ascii=True, default=str).iterencode(value)
        return self._write(name, chain(pieces, "\n"), lasts)

    def write_text(self, name: str, text: str | Iterable[str], *, lasts: bool = True) -> bool:
        """Writes a file (a path relative to the directory) whole or not at all, as UTF-8."""
        return self._write(name, (text,) if isinstance(text, str) else text, lasts)

    def raise_in_ranks(self, kind: str, message: str, cause: str | None = None) -> bool:
        """Have every rank of the run that can run Python raise a finding. They hear of it without
        waiting for a busy disk. Returns as `write_json` does."""
        verdict = Verdict(kind, finding_line(kind, message), cause)
        return self.write_json(self.verdict.name, verdict.to_json(), lasts=False)

    def _write(self, name: str, pieces: Iterable[str], lasts: bool) -> bool:
        try:
            with replacing(self.path / name, lasts=lasts) as file:
                for piece in pieces:
                    file.write(piece.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._fail(name, error)
            return False
        return True

    def append_line(self, name: str, value: dict[str, Any]) -> bool:
        """Adds one JSON line to a file. Returns False, and adds to `failures`, on an error."""
        line = json.dumps(value, separators=(",", ":"), ensure_ascii=True, default=str) + "\n"
        try:
            append(self.path / name, line.encode())
        except OSError as error:
            self._fail(name, error)
            return False
        return True

    def append_event(self, kind: str, message: str, **data: Any) -> bool:
        """Adds a notice or finding to events.jsonl, with the time in Unix nanoseconds."""
        event = {"time_ns": time.time_ns(), "kind": kind, "message": message, **data}
        return self.append_line(self.events.name, event)

    def _fail(self, name: str, error: OSError) -> None:
        sentence = f"cannot write {name} in the run directory {self.path}: {reason(error)}"
        if sentence not in self.failures:
            self.failures.append(sentence)


def nearest(base: Path = BASE) -> Path:
    """The folder of runs here, or else in the nearest folder above that has one; as far as these
    are this user's, and nobody else may put one there."""
    with contextlib.suppress(OSError):
        for folder in [] if base.is_absolute() or base.exists() else Path.cwd().parents:
            found = folder.stat()
            if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
                break
            if (folder / base).is_dir():
                return folder / base
    return base


def run_names(base: Path) -> list[str]:
    """The names below `base` that runs have, newest first."""
    with contextlib.suppress(OSError):
        return sorted(filter(_NAME.fullmatch, os.listdir(base)), reverse=True)
    return []


def runs_in(folder: Path) -> list[Path]:
    """Returns the runs that a folder of them holds, or one in which there is such a folder."""
    return [base / one for base in (folder, folder / BASE) for one in run_names(base)]


def _point_latest(base: Path, path: Path) -> None:
    """A link that cannot be made costs `distdebug report` its default, and nothing else."""
    latest, temporary = base / LATEST, base / f".{LATEST}-{os.urandom(4).hex()}"
    try:
        os.symlink(path.name if path.parent == base else path, temporary)
        if latest.exists() and not latest.is_symlink():
            temporary.unlink()  # somebody's own file
        else:
            os.replace(temporary, latest)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _lock(path: Path) -> int:
    """Holds the directory for as long as this process lives; -1 where locks do not work."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def _is_there(path: Path) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {reason(error)}") from error
    return True


def why_not_ours(path: Path) -> str | None:
    """None for a run directory, otherwise the end of a sentence that begins with its name."""
    try:
        with open(open_regular(path / "run.json"), "rb") as file:
            value = parsed(file.read(1 << 22))
    except FileNotFoundError:
        return "is not a run directory of distdebug: it has no run.json"
    except OSError as error:
        return f"cannot be read: {reason(error)}"
    except ValueError:
        return "is not a run directory of distdebug: its run.json is not JSON"
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema == SCHEMA:
        return None
    if isinstance(schema, str) and schema.startswith("distdebug.run/"):
        return f"was written by another version of distdebug ({schema[:40]}; this is {SCHEMA})"
    return "is not a run directory of distdebug: its run.json is something else's"


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        return object_of(read_regular(path, MOST_JSON_BYTES + 1))
    except OSError:
        return {}


def _check_parent(parent: Path) -> None:
    """Others must not be able to swap the run directory for one of their own."""
    try:
        found = os.stat(parent)
    except FileNotFoundError:
        return  # made by us, below
    if not stat.S_ISDIR(found.st_mode):
        raise RunDirectoryError(f"{parent} is not a directory; choose another with --run-dir")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise RunDirectoryError(
            f"every user may replace files in {parent} (world-writable, no sticky bit); "
            "choose another place with --run-dir"
        )


def _check_own(path: Path) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise RunDirectoryError(f"{path} is a symbolic link; name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise RunDirectoryError(f"{path} is not a directory; choose another with --run-dir")
    if found.st_uid != os.geteuid():
        raise RunDirectoryError(f"{path} belongs to another user; choose another with --run-dir")


def _make_explicit(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        _check_own(path)
        if any(path.iterdir()):
            raise RunDirectoryError(
                f"the run directory {path} is not empty; name one that is empty or does not exist"
            ) from None
        path.chmod(0o700)


def make_base(base: Path) -> None:
    base.parent.mkdir(parents=True, exist_ok=True)
    try:
        base.mkdir(mode=0o700)
    except FileExistsError:
        _check_own(base)
        _check_parent(base)
    else:
        with contextlib.suppress(OSError):  # it is in nobody's commit
            (base / ".gitignore").write_text("*\n")


def _make_new(base: Path) -> Path:
    for _ in range(100):
        moment = datetime.now().astimezone()
        path = base / f"{moment:%Y%m%d-%H%M%S}-{os.urandom(2).hex()}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(base))


def reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """`number`: its place in the plan; `text`: as the user wrote it, printable."""

    number: int
    text: str


def planned_faults(directory: Path) -> Sequence[PlannedFault]:
    """Returns the faults by number; none where the run has no plan, or one of another version."""
    plan = read_object(directory / FAULTS_PLAN)
    rows = plan.get("faults") if plan.get("schema") == FAULTS_SCHEMA else None
    found = {}
    for row in rows if isinstance(rows, list) else ():
        number = row.get("number") if isinstance(row, dict) else None
        if isinstance(number, int) and not isinstance(number, bool):
            found[number] = PlannedFault(number, printable(str(row.get("text", ""))))
    return [found[number] for number in sorted(found)]
