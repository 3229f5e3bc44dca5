"""The stops of ranks at breakpoints: how they are asked for, what they leave in the run directory,
and who may talk to them.

`--break` takes `train.py:42@2` and `all_reduce#12@2`, read alike outside and in ranks.
`breakpoints/break-<pid>` (empty, 0600, in a folder of 0700) asks a rank that runs to stop, and its
heartbeat sees it. The supervisor makes it; the rank removes it when it stands, and the supervisor
when the rank is to go on after all.

`breakpoints/<rank>-<pid>.json` says that a process stands at a breakpoint, and where;
`breakpoints/<rank>-<pid>.sock` (0600, in a folder of 0700) is its prompt. Both go when it goes on.
The rank is "x" where the process does not know it yet.

On the socket each side sends JSON lines: the rank {"output": text}, {"prompt": text} when it awaits
a line, {"candidates": [...]} and {"end": text}; the terminal {"line": text},
{"complete": [text, line, begin, end]}, and {"once": true} when it will leave as soon as the rank
goes on, which is then said by {"end": text}, and leaves the rank its further breakpoints. Before
anything is read, each side looks at whose process the other is.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...system import proc
from ..ops import OP_CODES
from ..safe_files import parsed, read_regular, replacing, short_name, user_of
from ..safe_text import whole_number
from ..wording import RankState, printable
from .supervision import FOLDER, STOP, named

BREAKPOINT = "breakpoint"
TAKEN = "another terminal is at this prompt already"
"""The end that a second terminal is shown."""
MAX_MESSAGE_BYTES = 1 << 20
_CALL = re.compile(r"([A-Za-z]\w*)#(\d{1,18})(?:@(\d{1,9}))?", re.ASCII)
_LINE = re.compile(r"(.+):(\d{1,9})(?:@(\d{1,9}))?", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class Stop:
    """A process at a breakpoint. `rank` is None where it has none yet. `why` is BREAKPOINT or
    the exception of a post-mortem; `address`: where an editor can connect instead of a terminal."""

    rank: int | None
    pid: int
    file: str
    line: int
    function: str
    why: str
    address: str

    @property
    def name(self) -> str:
        return f"{'x' if self.rank is None else self.rank}-{self.pid}"

    @property
    def who(self) -> str:
        return f"process {self.pid}" if self.rank is None else f"rank {self.rank}"

    @property
    def place(self) -> str:
        """`train.py:42 in step`."""
        return printable(f"{os.path.basename(self.file)}:{self.line} in {self.function}")

    def notice(self, run: str) -> str:
        """Says how to come here; `run` is the argument RUN of `distdebug attach`, or ""."""
        held = f"held after {printable(self.why)}"
        at = RankState.AT_BREAKPOINT if self.why == BREAKPOINT else held
        if self.address:
            how = f"connect an editor's debugger to {printable(self.address)}"
        else:
            named = "" if self.rank is None else f" --rank {self.rank}"
            how = f"attach with: distdebug attach{f' {run}' if run else ''}{named}"
        return f"{self.who} is {at} ({self.place}); {how}"


def stops(directory: Path) -> list[Stop]:
    """Returns the ranks that stand at a breakpoint now, on this host, by rank."""
    found = []
    for match in named(directory, STOP):
        if not proc.exists(match[2]):
            continue
        rank = None if match[1] == "x" else int(match[1])
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            value = parsed(read_regular(directory / FOLDER / match[0], MAX_MESSAGE_BYTES))
            place = str(value["file"]), int(value["line"]), str(value["function"])
            words = str(value["why"]), str(value["address"])
            found.append(Stop(rank, int(match[2]), *place, *words))
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def own_folder(directory: Path) -> Path:
    """The folder, made if need be. Raises OSError, PermissionError where others can enter it."""
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users")
    return folder


def announce(directory: Path, stop: Stop) -> None:
    """Leave word that this process stands here. Raises OSError."""
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    said = ("file", "line", "function", "why", "address")
    value = {name: getattr(stop, name) for name in said}
    with replacing(folder / f"{stop.name}.json", lasts=False) as file:
        file.write(json.dumps(value).encode())


def withdraw(directory: Path, stop: Stop) -> None:
    """The process goes on."""
    for suffix in ("json", "sock"):
        with contextlib.suppress(OSError):
            (directory / FOLDER / f"{stop.name}.{suffix}").unlink()


def listen(directory: Path, stop: Stop) -> socket.socket:
    """The socket to which terminals connect. Raises OSError."""
    folder = own_folder(directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{stop.name}.sock").unlink()
        with short_name(folder) as short:
            listener.bind(f"{short}/{stop.name}.sock")
        os.chmod(folder / f"{stop.name}.sock", 0o600)
        listener.listen(4)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(directory: Path, stop: Stop) -> socket.socket:
    """A connection to a rank's prompt. Raises OSError, PermissionError for another user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(directory / FOLDER) as short:
            connection.connect(f"{short}/{stop.name}.sock")
        if not same_user(connection):
            raise PermissionError("the process at the other end is another user's")
    except BaseException:
        connection.close()
        raise
    return connection


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end runs as this user."""
    return user_of(connection) == os.geteuid()


class Line:
    """An end of a connection: messages in, messages out. Errors of the network read as an end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, **message: Any) -> bool:
        """Whether the other end still takes it."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have come, at least a part of one; None when the other end is gone, or
        sends what is none."""
        try:
            data = self.connection.recv(1 << 16)
            if not data:
                return None
            *whole, self._received = (self._received + data).split(b"\n")
            if len(self._received) > MAX_MESSAGE_BYTES:
                return None
            messages = [json.loads(one) for one in whole]
        except (OSError, ValueError, RecursionError):
            return None
        return messages if all(isinstance(one, dict) for one in messages) else None

    def close(self) -> None:
        self.connection.close()


def ask_to_stop(directory: Path, pid: int) -> None:
    """The process is to stop. Asking again is asking once. Raises OSError."""
    folder = own_folder(directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(folder / f"break-{int(pid)}", flags, 0o600))


@dataclass(frozen=True, slots=True)
class BreakAt:
    """A line, or the call of an op with a sequence number in any group (of a message: in its
    channel). `rank` None: on every rank that comes there."""

    file: str = ""
    line: int = 0
    op: str = ""
    seq: int = 0
    rank: int | None = None

    def __str__(self) -> str:
        where = f"{self.op}#{self.seq}" if self.op else f"{self.file}:{self.line}"
        return where if self.rank is None else f"{where}@{self.rank}"


def parse_break(text: str) -> BreakAt:
    """Raises ValueError with one sentence."""
    call = _CALL.fullmatch(text)
    if call:
        op = call[1]
        if op not in OP_CODES:
            near = difflib.get_close_matches(op, OP_CODES, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"--break {text}: there is no operation {op}{meant}")
        return BreakAt(op=op, seq=int(call[2]), rank=whole_number(call[3]))
    line = _LINE.fullmatch(text)
    if line:
        if int(line[2]) < 1:
            raise ValueError(f"--break {text}: lines count from 1")
        return BreakAt(file=line[1], line=int(line[2]), rank=whole_number(line[3]))
    raise ValueError(
        f"--break {text}: write FILE:LINE or OP#SEQ, such as train.py:42 or all_reduce#12, "
        "with @RANK behind it for one rank only"
    )


def lines_with_code(source: str, file: str) -> set[int]:
    """The lines at which Python can stop. Raises SyntaxError and ValueError for what is no
    program."""
    found: set[int] = set()
    waiting = [compile(source, file, "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        # The first instructions of a code object are its preparation, on no line that runs.
        found.update(line for _, _, line in code.co_lines() if line)
        waiting += [one for one in code.co_consts if isinstance(one, type(code))]
    return found


def canonical_file(file: str) -> str:
    """The name by which one file is known."""
    return os.path.normcase(os.path.abspath(file))
