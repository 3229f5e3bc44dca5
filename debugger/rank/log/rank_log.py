"""The rank's log: what the layer, the program and Python's warnings say in it, a JSON line each.

It goes to `logs/<rank>.jsonl` of the run directory, and from the level of torch's two variables on
to stderr as well. While TORCH_CPP_LOG_LEVEL is not set the file has more: from info on. Imports no
torch: the program may log before it does.
"""

from __future__ import annotations

import contextlib
import json
import os
import reprlib
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import time_ns
from typing import Any

from ...record import log_file
from ...record.log_file import at_least, chosen_level, readable
from ...record.notes import NoteData
from .interruptions import is_interruption

CPP_LEVEL = "TORCH_CPP_LOG_LEVEL"
EMPTY: Mapping[str, Any] = {}
_RESERVED = frozenset(
    ("time_ns", "rank", "host", "pid", "level", "event", "file", "line", "printed")
)
"""The fields that the log itself writes into a record."""

Made = Callable[[str, Mapping[str, Any]], tuple[Mapping[str, Any], bytes]]
"""A function that makes a record, and its line, of an event and its fields."""


class ThisProcess:
    """The facts about this process that the layer gives once it is there; until then the
    environment does. The program may write to the log before it has imported torch, and with it the
    layer."""

    def __init__(self) -> None:
        self.rank_of: Callable[[], int] | None = None
        """-1: not known yet."""
        self.directory: Path | None = None
        """The directory of the run."""
        self.debug_level: Callable[[], str] | None = None
        self.note_part_off: Callable[[str, str], None] | None = None
        """Puts on the flight record that a part of the layer is off, and why."""
        self.passing: tuple[type[Exception], ...] = ()
        """The verdict of the run, which may be raised anywhere."""
        self.made: Made | None = None
        self.broken = False
        self.dropped = False
        self.thread = threading.local()

    def observed(
        self,
        rank_of: Callable[[], int],
        directory: Path,
        debug_level: Callable[[], str],
        note_part_off: Callable[[str, str], None],
        passing: tuple[type[Exception], ...],
    ) -> None:
        """The layer is there."""
        self.rank_of, self.directory, self.debug_level = rank_of, directory, debug_level
        self.note_part_off, self.passing = note_part_off, passing


of_this_process = ThisProcess()


def write(event: str, level: str = "info", **fields: Any) -> None:
    """Add a record, if the level is logged. Never raises; nothing is written where there is no run
    directory."""
    if at_least(level, file_level()):
        put(event, level, fields)


def note(
    note: NoteData, message: str, place: tuple[str, int] | None, shown: Mapping[str, Any] = EMPTY
) -> None:
    """A note on the flight record is a record of the log, too. It is not printed: what it is about
    stands in a traceback or in the report. `shown`: fields that people know by other values."""
    if not note.LOGGED or not at_least(note.LEVEL, file_level()):
        return
    data = {**note.data(), **shown}
    fields = {name: value for name, value in data.items() if name not in note.FOR_DIAGNOSIS}
    put(note.KIND, note.LEVEL, {"message": message, **renamed(fields), **at(place)}, printed=True)


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with a `_` behind each name that every record has, or may have, from the log."""
    return {f"{name}_" if name in _RESERVED else name: one for name, one in fields.items()}


def put(event: str, level: str, fields: Mapping[str, Any], printed: bool = False) -> None:
    """Add a record, whatever its level. `printed`: stderr says the same already. Never raises,
    but for the verdict of the run, which may come at any time."""
    if of_this_process.broken or _logs() is None:
        return
    late: list[partial[None]] | None = getattr(of_this_process.thread, "late", None)
    record = partial(_add, time_ns(), event, level, fields, printed)
    if late is None:
        record()
    else:
        late.append(record)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Writes what this thread logs within only afterwards: structlog takes 0.1 s to import, in
    which a flight record that is half written would mislead its readers."""
    of_this_process.thread.late = []
    try:
        yield
    finally:
        late, of_this_process.thread.late = of_this_process.thread.late, None
        for record in late:
            # Ctrl-C comes from the terminal and again from the launcher: the process ends already,
            # and its last words are those of the first.
            try:
                record()
            except BaseException as error:
                if not is_interruption(error):
                    raise


def _add(time_ns: int, event: str, level: str, fields: Mapping[str, Any], printed: bool) -> None:
    logs = _logs()
    if logs is None:
        return
    try:
        made = _chain()
        if made is None:
            return
        shown = not printed and at_least(level, console_level())
        rank = _rank()
        identity = {
            "time_ns": time_ns,
            "rank": rank if rank >= 0 else None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "level": level,
        }
        more = {"printed": True} if printed or shown else {}
        record, line = made(event, {**fields, **identity, **more})
        if shown:
            with contextlib.suppress(OSError):
                text = readable(record, colour=os.isatty(2) and not os.environ.get("NO_COLOR"))
                os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))
        name = f"{rank}" if rank >= 0 else f"pid-{os.getpid()}"
        log_file.append(logs / f"{name}.jsonl", line, log_file.most_bytes())
    except OSError:
        pass  # a full disk costs the log, not the run
    except Exception as error:
        if isinstance(error, of_this_process.passing) or is_interruption(error):
            raise
        _drop(event, error)


def _drop(event: str, error: Exception) -> None:
    """A record that cannot be made is left out; the first one is reported on stderr and in the
    log."""
    if os.environ.get("DISTDEBUG_RAISE_OWN_FAULTS"):
        raise error
    if of_this_process.dropped:
        return
    of_this_process.dropped = True
    # Neither may have a text that can be read.
    reason = "".join(traceback.format_exception_only(error)).strip()
    what = f"a record of {reprlib.repr(event)}"
    text = f"the log of process {os.getpid()} lacks {what}: {reason:.500}"
    with contextlib.suppress(OSError):
        os.write(2, f"distdebug: {text}\n".encode("utf-8", "backslashreplace"))
    put("own_fault", "warning", {"message": text}, printed=True)


def _chain() -> Made | None:
    """Returns what makes the line; None while this thread imports it, which may give a warning, and
    where that fails: then there is no log."""
    if of_this_process.made is None:
        if getattr(of_this_process.thread, "imports", False):
            return None
        of_this_process.thread.imports = True
        try:
            from .encoding import made

            of_this_process.made = made
        except OSError:
            return None  # too many open files, say: the next record tries again
        except Exception as error:
            if isinstance(error, of_this_process.passing) or is_interruption(error):
                raise
            of_this_process.broken = True
            from .own_faults import report_own_fault

            report_own_fault("the rank's log", error)
        finally:
            of_this_process.thread.imports = False
    return of_this_process.made


def at(place: tuple[str, int] | None) -> dict[str, Any]:
    """The fields for a line of code."""
    return {} if place is None else {"file": place[0], "line": place[1]}


def file_level() -> str:
    """The least level that goes to the file."""
    return console_level() if CPP_LEVEL in os.environ else "info"


def console_level() -> str:
    """The least level that goes to stderr as well."""
    if of_this_process.debug_level is not None:
        distributed = of_this_process.debug_level()
    else:
        distributed = os.environ.get("DISTDEBUG_LEVEL", "")
    return chosen_level(os.environ.get(CPP_LEVEL, ""), distributed)


def claimed() -> None:
    """The rank is known: what was logged before goes to its file."""
    logs, rank = _logs(), _rank()
    if logs is None or rank < 0:
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        before = logs / f"pid-{os.getpid()}.jsonl"
        if before.exists():
            for line in before.read_bytes().splitlines():
                record = json.loads(line)
                record = {"time_ns": record.pop("time_ns"), "rank": rank, **record}
                text = json.dumps(record, separators=(",", ":")) + "\n"
                log_file.append(logs / f"{rank}.jsonl", text.encode(), log_file.most_bytes())
            before.unlink()


def _logs() -> Path | None:
    if of_this_process.directory is not None:
        return of_this_process.directory / "logs"
    path = os.environ.get("DISTDEBUG_RUN_DIR")
    return Path(path) / "logs" if path else None


def _rank() -> int:
    if of_this_process.rank_of is not None:
        return of_this_process.rank_of()
    if os.environ.get("DISTDEBUG_RANK_PID") == str(os.getpid()):
        return int(os.environ["RANK"])
    return -1
