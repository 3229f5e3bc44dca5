"""Takes the stacks of all ranks from outside, whatever state they are in, and reads their source.

Three ways, until one gives something. py-spy reads the process's memory without stopping it (the
only way that also works for a stopped process; pausing would also break off system calls of the
program) and sees who holds the GIL. A signal makes `faulthandler` in the rank write its stack. The
kernel shows at least in which system call each thread is.

The source is read where the process has its files: a rank in a container has files of its own, and
what lies at the same path here may be another program. The paths are the process's own word:
nothing but a regular file is opened, and no more than `MOST_BYTES` of it are read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from ...record.requests import stack_dump
from ...record.safe_files import read_regular
from ...record.safe_text import clean
from ...system import proc
from ...system.threads import kernel_wait
from ..limits import OWN_STACK_S, STACKS_S

WORKERS = 8
_MAX_TEXT = 512


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a stack. `file` is the full path, or a library for a native frame; `line` is 0
    where it is not known. `values` are the names and printed values of local variables, where they
    were asked for."""

    function: str
    file: str
    line: int
    native: bool = False
    values: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    root: str = field(default="", compare=False, repr=False)
    """The root of the files of its process, as seen from here: of one in a container, elsewhere."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of one thread; `frames` innermost first. `native_id` is 0 where it is not known.

    `active`: it uses a core. `wait`: the kernel function it sleeps in ("" for none or not known).
    `source`: py-spy, faulthandler or proc; the last knows no Python frames.
    """

    thread_id: int
    native_id: int
    name: str
    holds_gil: bool
    active: bool
    frames: tuple[Frame, ...]
    wait: str = ""
    source: str = "py-spy"

    @property
    def python_frames(self) -> list[Frame]:
        """The frames without those of native code, innermost first."""
        return [frame for frame in self.frames if not frame.native]


def capture(
    pids: Iterable[int],
    native: bool = False,
    timeout_s: float = 10.0,
    directory: Path | None = None,
    problems: list[str] | None = None,
    values: bool = False,
) -> dict[int, list[ThreadStack]]:
    """The stacks of all threads of the given processes, several at a time; about 30 ms each.

    `directory` is where ranks write theirs (`stacks/` of the run). A process that has gone has no
    stacks. `problems` gets a sentence for each process for which py-spy did not work. Takes
    little longer than `timeout_s`. `native` adds C frames, and pauses each process shortly.
    `values` adds the local variables of Python frames, where py-spy can read the process.
    """
    deadline = time.monotonic() + timeout_s
    wanted = list(dict.fromkeys(pids))
    if not wanted:
        return {}
    found_problems: list[str] = []

    def one(pid: int) -> list[ThreadStack]:
        return _capture_one(pid, native, deadline, directory, found_problems, values)

    with ThreadPoolExecutor(min(WORKERS, len(wanted)), "distdebug-stacks") as pool:
        found = dict(zip(wanted, pool.map(one, wanted), strict=True))
    if problems is not None:
        problems += sorted(found_problems)
    return found


def find_py_spy() -> str | None:
    """The binary that was installed with this tool, or else the one on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _capture_one(
    pid: int,
    native: bool,
    deadline: float,
    directory: Path | None,
    problems: list[str],
    values: bool,
) -> list[ThreadStack]:
    stat = proc.read_stat(pid)
    if stat is None or stat.state in "ZX":
        return []
    stopped = stat.state in "Tt"
    reason = "it is not installed"
    program = find_py_spy()
    if program is not None:
        # py-spy cannot pause what is paused, and cannot unwind C without pausing.
        attempts = [["--native"]] if native and not stopped else []
        # A running program changes while it is read: a second look then mostly works.
        attempts += [["--nonblocking"]] * 3
        for options in attempts:
            answer = _run_py_spy(
                program, pid, [*options, *(["--locals"] if values else [])], deadline
            )
            if isinstance(answer, list):
                return answer
            reason = answer
    if proc.read_stat(pid) is None:
        return []
    problems.append(f"py-spy cannot read process {pid}: {reason}")
    if directory is not None and not stopped:
        limit_s = min(deadline - time.monotonic(), OWN_STACK_S)
        threads = parse_faulthandler(pid, stack_dump.ask(directory, pid, limit_s))
        if threads:
            return threads
    return _from_proc(pid)


def _run_py_spy(
    program: str, pid: int, options: list[str], deadline: float
) -> list[ThreadStack] | str:
    """The stacks, or why there are none."""
    left_s = min(deadline - time.monotonic(), STACKS_S)
    if left_s <= 0:
        return "no time was left"
    try:
        done = subprocess.run(
            [program, "dump", "--json", "--pid", str(pid), *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=left_s,
            check=False,
        )
        if done.returncode == 0:
            root = proc.root_of(pid)
            return [_from_py_spy(pid, thread, root) for thread in json.loads(done.stdout)]
    except subprocess.TimeoutExpired:
        return f"no answer within {left_s:.0f} s"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return clean(str(error), 200)
    text = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
    return clean(text.splitlines()[0].removeprefix("Error: "), 200)


def _from_py_spy(pid: int, thread: dict[str, Any], root: str) -> ThreadStack:
    native_id = int(thread["os_thread_id"] or 0)
    # Threads have names once the program has imported `threading`.
    name = clean(str(thread["thread_name"] or ("MainThread" if native_id == pid else "")), 80)
    active = bool(thread["active"])
    if not native_id and name == "MainThread":
        # Of Python 3.10, without native frames, py-spy does not know which thread of the kernel is
        # which where there are several, and takes them all to run. The main one is the process.
        native_id = pid
        stat = proc.read_stat(pid, proc.tasks(pid))
        active = stat is None or stat.state == "R"
    return ThreadStack(
        thread_id=int(thread["thread_id"]),
        native_id=native_id,
        name=name,
        holds_gil=bool(thread["owns_gil"]),
        active=active,
        frames=tuple(_py_spy_frame(pid, frame, root) for frame in thread["frames"]),
        wait="" if active or not native_id else kernel_wait(pid, native_id),
    )


def _py_spy_frame(pid: int, frame: dict[str, Any], root: str) -> Frame:
    # Only native frames carry the module that they were found in.
    native = frame["module"] is not None
    file = clean(str(frame["filename"]), _MAX_TEXT)
    return Frame(
        function=clean(str(frame["name"]), _MAX_TEXT),
        file=file if native else _whole_path(pid, file, root),
        line=int(frame["line"]),
        native=native,
        root=root,
        values=tuple(
            (clean(str(one["name"]), 80), clean(str(one.get("repr") or ""), _MAX_TEXT))
            for one in frame.get("locals") or ()
        ),
    )


def _whole_path(pid: int, file: str, root: str) -> str:
    """A path is given as the program was started with it: `runpy` keeps `train.py`."""
    if file.startswith(("/", "<")):
        return file
    try:
        whole = os.path.join(proc.working_directory(pid), file)
    except OSError:
        return file
    return whole if os.path.exists(root + whole) else file


def parse_faulthandler(pid: int, text: str) -> list[ThreadStack]:
    """The threads in a dump of `faulthandler`. It names no native ids, and few names."""
    return [
        ThreadStack(
            thread_id=thread.ident,
            native_id=pid if thread.main else 0,
            name=clean(thread.name or ("MainThread" if thread.main else ""), 80),
            holds_gil=False,
            active=False,
            frames=tuple(
                Frame(clean(function, _MAX_TEXT), clean(file, _MAX_TEXT), line)
                for file, line, function in thread.frames
            ),
            source="faulthandler",
        )
        for thread in stack_dump.threads(text)
    ]


def _from_proc(pid: int) -> list[ThreadStack]:
    """Returns what the kernel says of each thread: its name, and the function that it sleeps in."""
    threads = []
    try:
        native_ids = proc.threads(pid)
    except OSError:
        return []
    for native_id in native_ids:
        stat = proc.read_stat(native_id, proc.tasks(pid))
        if stat is None:
            continue
        name = proc.name(native_id, proc.tasks(pid))
        wait = kernel_wait(pid, native_id)
        doing = "stopped" if stat.state in "Tt" else "running" if stat.state == "R" else "waits"
        threads.append(
            ThreadStack(
                thread_id=0,
                native_id=native_id,
                name="MainThread" if native_id == pid else clean(name, 80),
                holds_gil=False,
                active=stat.state == "R",
                frames=(Frame(f"{doing} in {wait}" if wait else doing, "kernel", 0, native=True),),
                wait=wait,
                source="proc",
            )
        )
    return threads


MOST_BYTES = 1 << 21


def line_of(frame: Frame) -> str:
    """The line that the frame stands at; "" where it cannot be read."""
    lines = _lines_of(frame.root + frame.file)
    return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""


@lru_cache(maxsize=64)
def _lines_of(path: str) -> list[str]:
    return text_of(path).splitlines()


@lru_cache(maxsize=64)
def text_of(path: str) -> str:
    """The source file; "" where it cannot be read."""
    if not path.startswith("/"):
        return ""
    try:
        return decode_source(read_regular(path, MOST_BYTES, follow_links=True))
    except (OSError, ValueError, SyntaxError):
        return ""
