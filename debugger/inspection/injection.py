"""Has a Python process that runs execute a few lines, in its main thread, between two bytecodes.

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
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..record.safe_text import clean
from ..system.proc import executable, mapped, read_stat
from .installable import NotInstallable, Target, by_gdb, loaded
from .limits import ANSWER_S, STOP_LOOK_EVERY_S, TOOL_S

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
            time.sleep(STOP_LOOK_EVERY_S)
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
