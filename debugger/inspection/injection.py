"""Has a Python process that runs execute a few lines, in its main thread, between two bytecodes.

Whether that may be done to it (`target`) is read before anything is touched: one exact sentence
says why not.

What known tools do, and what is done here. memray's `attach` and pyrasite have gdb stop the process
wherever it is, take the GIL (`PyGILState_Ensure`) and run Python there: where the stopped thread is
within malloc, holds the loader's lock or an import's, or another thread that is stopped with it
holds the GIL, the process stands still for ever. memray therefore waits for breakpoints on malloc
and free; a process that waits in C++ hits none of them, and one in a tight loop is slow meanwhile.
debugpy loads a library of its own first, which takes the loader's lock and malloc.

Here gdb only calls `Py_AddPendingCall`, which CPython has for its C signal handlers. It takes no
GIL, allocates nothing, loads nothing, and returns at once; the interpreter makes the call when its
main thread comes to its next bytecode, holding no lock of the allocator's or the loader's, and not
within a signal handler. A rank that never comes there (it hangs in C++) is never touched further,
and whoever asks is told that it did not come. The text to execute is in a page of its own, made by
`mmap`, which is a system call and no more. All other threads go on during the calls (gdb's
`scheduler-locking` stays off), so that a lock that one of them holds for a moment is given back.

What remains: the main thread may be stopped inside `Py_AddPendingCall` or within the few
instructions in which the interpreter takes a call out of that queue, under the queue's own lock.
gdb's call would wait for itself then. It is given up after a time limit, gdb takes the call back
(`unwindonsignal`), and the process goes on where it was.

From Python 3.14 on the interpreter does the same by itself: `sys.remote_exec` (PEP 768) writes a
path into the process and has it executed at the next safe point. That takes the same minor version
on both sides, so the process's own interpreter is started to ask.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..record import torch_versions
from ..record.safe_text import clean
from ..system.proc import (
    DEAD_STATES,
    PROC,
    check_traceable,
    command_line,
    environment,
    executable,
    is_in_our,
    mapped,
    read_stat,
    read_status,
)
from .limits import ANSWER_S, TOOL_S
from .rights import needed

OLDEST_TORCH = (2, 14)
REMOTE_EXEC_FROM = (3, 14)
"""From this Python on, an interpreter can be asked to run a file (PEP 768)."""
_PYTHON = re.compile(r"cpython-3(\d+)(t?)d?-|libpython3\.(\d+)(t?)d?\.so|/python3\.(\d+)(t?)$")
_TORCH = "libtorch_python"


class NotInstallable(Exception):
    """The layer cannot be put into this process; the text says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process that the layer may be put into. `libraries`: the files that hold its interpreter
    and its C library, with where they are loaded; the executable itself has no place here."""

    pid: int
    python: tuple[int, int]
    executable: str
    libraries: tuple[tuple[str, int], ...] = ()
    by_remote_exec: bool = False


def target(pid: int, user: int | None = None, proc: Path = PROC) -> Target:
    """Returns what has to be known of this process. Raises NotInstallable."""
    stat = read_stat(pid, proc)
    if stat is None or stat.state in DEAD_STATES:
        raise NotInstallable("it has ended")
    if stat.state in "Tt":
        raise NotInstallable("it is stopped by a signal, or by a debugger: let it run first")
    try:
        maps, status = mapped(pid, proc), read_status(pid, proc)
        check_traceable(pid, proc)
    except PermissionError:
        raise NotInstallable(needed([pid], proc, user).replace("stacks", "it", 1)) from None
    except (OSError, ValueError):
        raise NotInstallable("it has ended") from None
    if not status:
        raise NotInstallable("it has ended")
    tracer = int(status.get("TracerPid", "0"))
    if tracer:
        raise NotInstallable(
            f"process {tracer} traces it already (a debugger, strace): end that first"
        )
    owner = int(status["Uid"].split()[1])
    mine = os.geteuid() if user is None else user
    if owner != mine:
        raise NotInstallable(
            f"it belongs to user {owner}, and this is user {mine}: it writes its record as that "
            "user, so run this as that user"
        )
    for kind, what in (("mnt", "files"), ("pid", "processes")):
        if not is_in_our(kind, pid, proc):
            raise NotInstallable(
                f"it is in a container that has its own {what}: run this inside that container"
            )
    places = loaded(maps)
    return _of_places(pid, places, proc)


def _of_places(pid: int, places: dict[str, int], proc: Path) -> Target:
    if any(os.path.basename(path).startswith("ld-musl") for path in places):
        raise NotInstallable(
            "its C library is musl, for which torch has no release to be tried with"
        )
    if any(map(_is_record, places)):
        raise NotInstallable("distdebug records it already")
    folders = [
        Path(path).parents[1] for path in places if os.path.basename(path).startswith(_TORCH)
    ]
    if not folders:
        raise NotInstallable("it has not loaded torch (yet)")
    version = torch_versions.of_package(folders[0])
    found = torch_versions.parsed(version)
    if found is None:
        raise NotInstallable(f"which torch it has cannot be read ({folders[0]}/version.py)")
    if found < OLDEST_TORCH:
        raise NotInstallable(
            f"its torch is {version}: groups that exist already can be observed from torch "
            f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} on, which has hooks around their calls"
        )
    python, threaded = _python(places)
    if threaded:
        raise NotInstallable("its Python has no GIL, which the record's writer relies on")
    program = executable(pid, proc)
    if program.endswith(" (deleted)"):
        raise NotInstallable("its Python was replaced since it was started (its file is gone)")
    if python >= REMOTE_EXEC_FROM and not _refuses_remote(pid, proc):
        return Target(pid, python, program, by_remote_exec=True)
    if python < (3, 10):
        raise NotInstallable(f"its Python is 3.{python[1]}: it takes 3.10 or newer")
    if shutil.which("gdb") is None:
        raise NotInstallable(
            "there is no gdb on this host, which it takes before Python 3.14: `apt install gdb`, "
            "or the like"
        )
    return by_gdb(pid, python, program, places)


def by_gdb(pid: int, python: tuple[int, int], executable: str, places: dict[str, int]) -> Target:
    """A process that gdb reaches, with the libraries of which it has to know the symbols."""
    libraries = [
        (path, start)
        for path, start in places.items()
        if re.match(r"libpython3\.|libc[.-]", os.path.basename(path))
    ]
    return Target(pid, python, executable, tuple(libraries))


def _python(places: dict[str, int]) -> tuple[tuple[int, int], bool]:
    """The version of its Python, and whether that has no GIL."""
    for path in places:
        found = _PYTHON.search(path)
        if found:
            minor = next(filter(None, found.group(1, 3, 5)))
            return (3, int(minor)), any(found.group(2, 4, 6))
    raise NotInstallable("which Python it runs cannot be told from what it has loaded")


def loaded(maps: list[str]) -> dict[str, int]:
    """The files that are loaded, and where their first bytes are."""
    found: dict[str, int] = {}
    for line in maps:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            start = int(fields[0].partition("-")[0], 16) - int(fields[2], 16)
            found.setdefault(fields[5], start)
    return found


def _is_record(path: str) -> bool:
    """Whether this is the record of a run that is there. A record takes its rank's name once that
    is known, and the kernel goes on to call it by the name that it was made with, and deleted."""
    name = path.removesuffix(" (deleted)")
    if not name.endswith(".flight"):
        return False
    return name == path or os.path.isdir(os.path.dirname(name))


def _refuses_remote(pid: int, proc: Path) -> bool:
    try:
        off = environment(pid, proc).get("PYTHON_DISABLE_REMOTE_DEBUG")
        return bool(off) or any("disable-remote-debug" in word for word in command_line(pid, proc))
    except OSError:
        return True


_PAGE_BYTES = 1 << 14
_ADDED = re.compile(r"^distdebug: added (-?\d+)$", re.MULTILINE)
_AT = "distdebug_page"
_UNWRITTEN = -2


@dataclass(frozen=True, slots=True)
class Injected:
    """The code is queued. `stopped_ms`: how long the process was stopped for it, as seen every
    half millisecond."""

    stopped_ms: float


def code(bootstrap: Path, run: Path) -> str:
    """The lines: a thread that executes `bootstrap` there and calls its `come(run)`. They leave no
    name behind, import nothing, and let no error out, which the interpreter would raise wherever
    the main thread is."""
    text = f"""
try:
    import _thread
    def _come(path={str(bootstrap)!r}, run={str(run)!r}):
        try:
            given = {{"__name__": "_distdebug_late", "__file__": path}}
            with open(path) as file:
                exec(compile(file.read(), path, "exec"), given)
            given["come"](run)
        except BaseException:
            pass
    _thread.start_new_thread(_come, ())
except BaseException:
    pass
"""
    return f"exec({text!r}, {{}})\n"


def inject(target: Target, text: str, folder: Path) -> Injected:
    """Queue `text` in the process; files that it takes are made in `folder`. Returns once it is
    queued, not once it has run. Raises NotInstallable."""
    file = folder / f"{target.pid}.code"
    data = text.encode()
    file.write_bytes(data if target.by_remote_exec else data + b"\0")
    if target.by_remote_exec:
        asking = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
        command = [target.executable, "-I", "-S", "-c", asking, str(target.pid), str(file)]
        done, stopped_ms = _run(command, target.pid, file.parent)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise NotInstallable(f"its interpreter does not take code from outside: {last}")
        return Injected(stopped_ms)
    if len(data) >= _PAGE_BYTES:
        raise NotInstallable("the path of the run directory is too long")
    return _by_gdb(target, file)


def rehearse(folder: Path) -> None:
    """Do it to a process of our own, which is in a system call as ranks are. Raises NotInstallable
    where that is not done as it should, or the process is not as it was: a gdb that is older than
    the processor may be unable to give a process its registers back."""
    waits = "import sys; print(flush=True); sys.exit(sys.stdin.read() != 'on')"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", waits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        inject(of_our_python(child.pid), "print('made', flush=True)\n", folder)
        out, _ = child.communicate("on", TOOL_S)
        if child.returncode or out.split() != ["made"]:
            raise NotInstallable(f"the process was harmed by it: {clean(out, 200)}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstallable(f"it could not be tried: {error}") from None
    finally:
        child.kill()
        child.communicate()


def of_our_python(pid: int) -> Target:
    """A process that runs the Python which runs this, as gdb reaches it. Raises OSError."""
    return by_gdb(pid, sys.version_info[:2], executable(pid), loaded(mapped(pid)))


def _by_gdb(target: Target, file: Path) -> Injected:
    # In the file's folder: `restore` takes names as they are, and ends them at a blank.
    done, stopped_ms = _run(gdb_command(target, file), target.pid, file.parent)
    found = _ADDED.search(done.stdout)
    if found is None:
        said = [line for line in done.stderr.splitlines() if line and "warning" not in line]
        raise NotInstallable(
            f"gdb could not queue a call in it: {(said or ['it says nothing'])[-1]}"
        )
    if int(found[1]) == _UNWRITTEN:
        raise NotInstallable("gdb could not write into its memory")
    if int(found[1]):
        raise NotInstallable("its interpreter has no room for a further pending call: try again")
    return Injected(stopped_ms)


def gdb_command(target: Target, file: Path) -> Sequence[str]:
    """gdb knows the symbols before it stops the process, and reads no library's while it does."""
    before = [
        "set confirm off",
        "set auto-load off",
        "set auto-solib-add off",
        "set libthread-db-search-path /nonexistent",
        "set debug-file-directory /nonexistent",
        "set unwindonsignal on",
        f"file {_quoted(target.executable)}",
        *(f"add-symbol-file {_quoted(path)} -o {start:#x}" for path, start in target.libraries),
        "set sysroot /nonexistent",
    ]
    mapped = "((void*(*)(unsigned long,unsigned long,int,int,int,long))mmap)"
    added = "((int(*)(void*,void*))Py_AddPendingCall)"
    queued = f"*(char*)${_AT} ? {added}((void*)PyRun_SimpleString, ${_AT}) : {_UNWRITTEN}"
    during = [
        f"attach {target.pid}",
        f"set ${_AT} = {mapped}(0,{_PAGE_BYTES},3,0x22,-1,0)",
        f"restore {file.name} binary (long)${_AT}",
        f'printf "distdebug: added %d\\n", {queued}',
        "detach",
    ]
    words = ["gdb", "-nx", "-q", "-batch", "-readnever"]
    for one in [*before, *during]:
        words += ["-ex", one]
    return words


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _run(
    command: Sequence[str], pid: int, folder: Path
) -> tuple[subprocess.CompletedProcess[str], float]:
    """The command, and for how many milliseconds the process was seen stopped meanwhile."""
    running = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={  # without what would have gdb, or an interpreter, start otherwise than as it is
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "LD_", "GDB"))
        },
        start_new_session=True,
    )
    stopped_s = 0.0
    until_s = time.monotonic() + TOOL_S
    before_s = time.monotonic()
    try:
        while running.poll() is None:
            now_s = time.monotonic()
            stat = read_stat(pid)
            if stat is not None and stat.state in "tT":
                stopped_s += now_s - before_s
            before_s = now_s
            if stopped_s > ANSWER_S or now_s > until_s:
                break
            time.sleep(0.0005)  # so short a stop is seen
        else:
            out, err = running.communicate()
            return subprocess.CompletedProcess(
                command, running.returncode, out, err
            ), stopped_s * 1e3
        raise NotInstallable(_let_go(running))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGKILL)  # the kernel detaches what it traced
        running.wait()


def _let_go(running: subprocess.Popen[str]) -> str:
    """Have gdb take its call back and detach."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.kill(running.pid, signal.SIGINT)
        running.communicate(timeout=ANSWER_S)
    return "gdb was too slow with it, and has been called off: try again when the host is less busy"
