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
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...record import log_file
from ...record.log_form import readable
from ...record.log_levels import LEVELS, at_least, chosen
from .interruptions import is_interruption

CPP_LEVEL = "TORCH_CPP_LOG_LEVEL"
_NOTE_LEVELS = {
    **dict.fromkeys(("exception", "thread_exception", "finding", "finding_raised"), "error"),
    **dict.fromkeys(("forked",), "error"),
    **dict.fromkeys(
        ("caught_exception", "interrupted", "layer_off", "not_in_group", "part_off", "stale_store"),
        "warning",
    ),
    **dict.fromkeys(("data_exhausted", "ddp_complete", "ddp_unused"), "debug"),
    **dict.fromkeys(("exit", "store_host", "unwinding"), "debug"),
}
"""Of notes on the flight record, by their kind; others are of level info."""
_FOR_DIAGNOSIS = frozenset(
    (
        "address_in_use",
        "call",
        "communication",
        "destroys",
        "invalid_argument",
        "own_fault",
        "thread_slot",
    )
)
"""What a note says to the diagnosis and to nobody else."""
_LOGGED_BY_THEMSELVES = frozenset(("ddp_failed", "ddp_times"))
_RESERVED = frozenset(
    ("time_ns", "rank", "host", "pid", "level", "event", "file", "line", "printed")
)
"""What the log itself says in a record."""

_rank_of: Callable[[], int] | None = None
_directory: Path | None = None
_debug_level: Callable[[], str] | None = None
_made: Callable[[str, Mapping[str, Any]], tuple[Mapping[str, Any], bytes]] | None = None
_thread = threading.local()
_broken = False
_dropped = False


def _before_torch(what: str, error: BaseException) -> None:
    """`report_own_fault`, which would import torch."""
    if os.environ.get("DISTDEBUG_RAISE_OWN_FAULTS"):
        raise error
    with contextlib.suppress(OSError):
        os.write(2, f"distdebug: {what} is switched off: {error!r}\n".encode(errors="replace"))


_report_fault: Callable[[str, BaseException], None] = _before_torch
_passing: tuple[type[Exception], ...] = ()
"""The verdict of the run, which may be raised anywhere."""


def observe(
    rank_of: Callable[[], int],
    directory: Path,
    report_fault: Callable[[str, BaseException], None],
    passing: tuple[type[Exception], ...],
) -> None:
    """From now on the rank (-1: not known yet) and the run directory are those of the layer, which
    also says how a fault of its own is reported, and which exceptions are the run's verdict."""
    global _rank_of, _directory, _debug_level, _report_fault, _passing
    from . import debug_level

    _rank_of, _directory, _debug_level = rank_of, directory, debug_level.current
    _report_fault, _passing = report_fault, passing


def write(event: str, level: str = "info", **fields: Any) -> None:
    """Add a record, if the level is logged. Never raises; nothing is written where there is no run
    directory."""
    if at_least(level, file_level()):
        put(event, level, fields)


def note(kind: str, message: str, data: Mapping[str, Any], place: tuple[str, int] | None) -> None:
    """A note on the flight record is a record of the log, too. It is not printed: what it is about
    stands in a traceback or in the report."""
    if kind in _LOGGED_BY_THEMSELVES:
        return
    severity = data.get("severity")
    level = str(severity) if severity in LEVELS else _NOTE_LEVELS.get(kind, "info")
    if not at_least(level, file_level()):
        return
    fields = {name: value for name, value in data.items() if name not in _FOR_DIAGNOSIS}
    put(kind, level, {"message": message, **renamed(fields), **at(place)}, printed=True)


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with a `_` behind each name that every record has, or may have, from the log."""
    return {f"{name}_" if name in _RESERVED else name: one for name, one in fields.items()}


def put(event: str, level: str, fields: Mapping[str, Any], printed: bool = False) -> None:
    """Add a record, whatever its level. `printed`: stderr says the same already. Never raises,
    but for the verdict of the run, which may come at any time."""
    if _broken or _logs() is None:
        return
    late: list[partial[None]] | None = getattr(_thread, "late", None)
    record = partial(_add, time.time_ns(), event, level, fields, printed)
    if late is None:
        record()
    else:
        late.append(record)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """What this thread logs within is written afterwards: structlog takes 0.1 s to import, in which
    a flight record that is half written would mislead its readers."""
    _thread.late = []
    try:
        yield
    finally:
        late, _thread.late = _thread.late, None
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
            _print(record)
        name = f"{rank}" if rank >= 0 else f"pid-{os.getpid()}"
        log_file.append(logs / f"{name}.jsonl", line, log_file.most_bytes())
    except OSError:
        pass  # a full disk costs the log, not the run
    except Exception as error:
        if isinstance(error, _passing) or is_interruption(error):
            raise
        _drop(event, error)


def _drop(event: str, error: Exception) -> None:
    """A record that cannot be made is left out; of the first one, stderr and the log are told."""
    global _dropped
    if os.environ.get("DISTDEBUG_RAISE_OWN_FAULTS"):
        raise error
    if _dropped:
        return
    _dropped = True
    # Neither may have a text that can be read.
    reason = "".join(traceback.format_exception_only(error)).strip()
    what = f"a record of {reprlib.repr(event)}"
    text = f"the log of process {os.getpid()} lacks {what}: {reason:.500}"
    with contextlib.suppress(OSError):
        os.write(2, f"distdebug: {text}\n".encode("utf-8", "backslashreplace"))
    put("own_fault", "warning", {"message": text}, printed=True)


def _chain() -> Callable[[str, Mapping[str, Any]], tuple[Mapping[str, Any], bytes]] | None:
    """What makes the line; None while this thread imports it, which may give a warning, and where
    that fails: then there is no log."""
    global _made, _broken
    if _made is None:
        if getattr(_thread, "imports", False):
            return None
        _thread.imports = True
        try:
            from .encoding import made

            _made = made
        except OSError:
            return None  # too many open files, say: the next record tries again
        except Exception as error:
            if isinstance(error, _passing) or is_interruption(error):
                raise
            _broken = True
            _report_fault("the rank's log", error)
        finally:
            _thread.imports = False
    return _made


def _print(record: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        text = readable(record, colour=os.isatty(2) and not os.environ.get("NO_COLOR"))
        os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))


def at(place: tuple[str, int] | None) -> dict[str, Any]:
    """The fields for a line of code."""
    return {} if place is None else {"file": place[0], "line": place[1]}


def file_level() -> str:
    """The least level that goes to the file."""
    return console_level() if CPP_LEVEL in os.environ else "info"


def console_level() -> str:
    """The least level that goes to stderr as well."""
    if _debug_level is not None:
        distributed = _debug_level()
    else:
        distributed = os.environ.get("DISTDEBUG_LEVEL", "")
    return chosen(os.environ.get(CPP_LEVEL, ""), distributed)


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
    if _directory is not None:
        return _directory / "logs"
    path = os.environ.get("DISTDEBUG_RUN_DIR")
    return Path(path) / "logs" if path else None


def _rank() -> int:
    if _rank_of is not None:
        return _rank_of()
    if os.environ.get("DISTDEBUG_RANK_PID") == str(os.getpid()):
        return int(os.environ["RANK"])
    return -1
