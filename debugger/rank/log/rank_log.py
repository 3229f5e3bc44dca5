"""The rank's log: what the layer, the program and Python's warnings say in it, a JSON line each.

It goes to `logs/<rank>.jsonl` of the run directory, and from the level of torch's two variables on
to stderr as well. While TORCH_CPP_LOG_LEVEL is not set the file has more: from info on. What goes
wrong in the layer itself is said here, too. Imports no torch: the program may log before it does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import math
import os
import reprlib
import signal
import socket
import sys
import threading
import traceback
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from dataclasses import dataclass, field
from functools import partial
from os import getpid
from pathlib import Path
from time import time_ns
from traceback import walk_tb
from types import CodeType
from typing import Any

from ...record import log_file
from ...record.log_file import at_least, chosen_level, readable
from ...record.notes import NoteData

CPP_LEVEL = "TORCH_CPP_LOG_LEVEL"
EMPTY: Mapping[str, Any] = {}
_RESERVED = frozenset(
    ("time_ns", "rank", "host", "pid", "level", "event", "file", "line", "printed")
)
"""The fields that the log itself writes into a record."""

MOST_TEXT = 4096
MOST_ITEMS = 2000
"""Within the lists and mappings of one record, all together."""
MOST_DEPTH = 8
MOST_BITS = 10_000
"""The most bits of a whole number; Python refuses to write longer ones, or takes long."""
LEFT_OUT = "..."
MOST_LINE_BYTES = 1 << 18
FIRST = ("time_ns", "rank", "host", "pid", "level", "event", "group", "seq", "op", "file", "line")
"""The fields that records may have in common, in their order."""


@dataclass
class ThisProcess:
    """The facts about this process that the layer gives once it is there; until then the
    environment does. The program may write to the log before it has imported torch, and with it the
    layer."""

    rank_of: Callable[[], int] | None = None
    """-1: not known yet."""
    directory: Path | None = None
    """The directory of the run."""
    debug_level: Callable[[], str] | None = None
    note_part_off: Callable[[str, str], None] | None = None
    """Puts on the flight record that a part of the layer is off, and why."""
    passing: tuple[type[Exception], ...] = ()
    """The verdict of the run, which may be raised anywhere."""
    dropped: bool = False
    thread: threading.local = field(default_factory=threading.local)


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
    if _logs() is None:
        return
    late: list[partial[None]] | None = getattr(of_this_process.thread, "late", None)
    record = partial(_add, time_ns(), event, level, fields, printed)
    if late is None:
        record()
    else:
        late.append(record)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Writes what this thread logs within only afterwards: a disk may take long for it, and
    meanwhile a flight record that is half written would mislead its readers."""
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


def is_interruption(error: BaseException) -> bool:
    """Whether the handler of a signal has raised it.

    A handler runs between two lines of whatever the main thread executes, which may be ours, and
    what it raises is meant for the program: Ctrl-C, or torchrun's SignalException upon SIGTERM.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    # Raised where it was caught, it is no handler's, which has a frame of its own.
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    return len(codes) > 1 and not codes.isdisjoint(
        code
        for handler in handlers
        if callable(handler) and isinstance(code := _code(handler), CodeType)
    )


def _code(handler: Any) -> Any:
    """Returns the code of a function, a method, a partial of one, or an object that can be
    called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = type(handler).__call__
    return getattr(function, "__code__", None)


RAISED = "DISTDEBUG_RAISE_OWN_FAULTS"
"""Set where a fault of the layer is to fail the program: in its own tests."""


def report_own_fault(what: str, error: BaseException) -> None:
    """Prints one line on stderr: a part of the layer is switched off, the program goes on. Raises
    what the handler of a signal has raised, which is the program's."""
    if os.environ.get(RAISED) or is_interruption(error):
        raise error
    note_part_off = of_this_process.note_part_off
    if note_part_off is not None:
        note_part_off(what, f"{what} is switched off: {error!r}")
    text = f"{what} is switched off in process {getpid()}: {error!r}"
    say(text)
    put("own_fault", "warning", {"message": text}, printed=True)


def at_exit(handler: Callable[[], object]) -> None:
    """Have the handler called when the process ends. What the program has replaced by then (`open`,
    `os.getpid`, a clock) may make it fail, which must not show in what the program prints."""

    def guarded() -> None:
        with contextlib.suppress(Exception):
            handler()

    atexit.register(guarded)


def say(text: str) -> None:
    """Prints one line on stderr, from the layer to the user."""
    with contextlib.suppress(OSError, ValueError):
        os.write(2, f"distdebug: {text}\n".encode("utf-8", "backslashreplace"))


_SHOWS = "_showwarnmsg_impl"
"""Private, for a replaced `warnings.showwarning` is not told the object that a ResourceWarning is
about, and Python would no longer say where it was allocated. `catch_warnings` keeps this name, too,
in all versions of Python that have it."""


def observe_warnings() -> None:
    """Puts Python's warnings, which are shown as before, into the log as well. A program that
    replaces `warnings.showwarning` itself takes them away again."""
    original = getattr(warnings, _SHOWS, None)
    if original is None:
        return

    def show(message: warnings.WarningMessage) -> None:
        original(message)
        if message.file is None and at_least("warning", file_level()):
            place = at((message.filename, message.lineno))
            text = {"category": message.category.__name__, "message": str(message.message), **place}
            put("python_warning", "warning", text, printed=True)

    setattr(warnings, _SHOWS, show)


# From an event and its fields to a JSON line, with the standard library alone: structlog took 0.2 s
# of each rank to import, and had to come from distdebug's environment where the program's had none.


def made(event: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The record of an event with these fields, and its line, which ends in a newline. Of what is
    an exception in `exc_info`, or of the one that is handled where that is true, it has the
    traceback."""
    given = {**fields, "event": event}
    error = given.pop("exc_info", None)
    if isinstance(error, tuple) and len(error) == 3:  # as `sys.exc_info()` gives it
        error = error[1]
    if not isinstance(error, BaseException):
        error = sys.exc_info()[1] if error else None
    if error is not None:
        given["exception"] = "".join(traceback.format_exception(error)).removesuffix("\n")
    if isinstance(trace := given.get("exception"), str):
        given["exception"] = trace[-MOST_TEXT:]  # its end is what counts
    values = _Values()
    plain = {key[:MOST_TEXT]: values.plain(value) for key, value in given.items()}
    first = {name: plain[name] for name in FIRST if plain.get(name) is not None}
    record = {**first, **{name: one for name, one in plain.items() if name not in FIRST}}
    line = _json(record)
    if len(line) > MOST_LINE_BYTES:
        record = {**first, "cut": len(line)}
        line = _json(record)
    return record, line


def _json(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


_LISTS = (list, tuple, set, frozenset, deque, array, MappingView)
_WALKED = (Mapping, *_LISTS)


class _Values:
    """The values of one record as JSON can have them, of limited size, whatever they are: tensors
    and arrays of one element as their number, what JSON does not know as its repr."""

    def __init__(self) -> None:
        self._left = MOST_ITEMS
        self._around: set[int] = set()
        """The containers, by `id`, in which the value is: one that holds itself has no end."""

    def plain(self, value: Any) -> Any:
        """`value`; what is too much of it is left out."""
        try:
            return self._plain(value)
        except Exception:  # it is not what it seems
            return _shown(value)

    def _plain(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value[:MOST_TEXT])
        if isinstance(value, int):
            return int(value) if value.bit_length() < 1000 else _shown(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else repr(float(value))
        if isinstance(value, _WALKED):
            return self._container(value)
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            number = value.item()
            return self._plain(number) if isinstance(number, (int, float, str)) else _shown(number)
        return _shown(value)

    def _container(self, value: Any) -> Any:
        if id(value) in self._around or len(self._around) == MOST_DEPTH:
            return LEFT_OUT
        self._around.add(id(value))
        try:
            return self._mapping(value) if isinstance(value, Mapping) else self._list(value)
        finally:
            self._around.discard(id(value))

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        found = {}
        try:
            for key, one in value.items():
                if self._left <= 0:
                    found[LEFT_OUT] = LEFT_OUT
                    break
                self._left -= 1
                found[self._key(key)] = self.plain(one)
        except Exception:  # another thread changes it
            found[LEFT_OUT] = LEFT_OUT
        return found

    def _list(self, value: Iterable[Any]) -> list[Any]:
        found = []
        try:
            for one in value:
                if self._left <= 0:
                    found.append(LEFT_OUT)
                    break
                self._left -= 1
                found.append(self.plain(one))
        except Exception:  # another thread changes it
            found.append(LEFT_OUT)
        return found

    def _key(self, key: Any) -> str:
        if isinstance(key, tuple):
            items = self.plain(key)
            return str(tuple(items) if isinstance(items, list) else items)[:MOST_TEXT]
        if isinstance(key, (str, int, bytes, frozenset)):
            return str(self.plain(key))[:MOST_TEXT]
        try:
            return str(key)[:MOST_TEXT]
        except Exception:
            return _shown(key)


def _shown(value: Any) -> str:
    try:
        if isinstance(value, _WALKED):
            return LEFT_OUT
        if isinstance(value, (bytes, bytearray)):
            value = value[:MOST_TEXT]
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            return f"<int of {value.bit_length()} bits>"
        return repr(value)[:MOST_TEXT]
    except Exception:
        return f"<{type(value).__name__} without a repr>"
