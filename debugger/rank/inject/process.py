"""Faults of the process: it gets a signal, ends, raises, hangs, is late; and of what it lives on.

That is its memory, its files, its store, and a fork that shares them. A full disk is a limit of
this process on the size of its files (RLIMIT_FSIZE): no file that it writes grows any more, and the
error is "File too large" in place of "No space left on device". The disk itself, which others use,
is left alone.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import math
import mmap
import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ...faults.actions import exception_of
from ...record.layout import Phase
from ...record.limits import POLL_EVERY_S
from ...record.notes import ExitNote
from ...system import proc
from ...system.memory import address_space_bytes, cgroup_folders
from ..torch_private.groups import default_store
from .call import CannotHappen, Context, InjectedGroup, at_users_line

_MUTEX_BYTES = 128
"""More than a pthread mutex has anywhere; all zeros is one that is free."""


def kill(context: Context) -> None:
    """The signal comes to this process; one that it handles, in its main thread."""
    number = getattr(signal, f"SIG{context.arguments['signal']}")
    if number == signal.SIGKILL:  # of all others that end it, the process itself leaves the line
        recorder = context.recorder
        recorder.note(ExitNote(), "killed by SIGKILL", recorder.safe_site(context.frame))
    context.announce()
    os.kill(os.getpid(), number)


def leave(context: Context) -> None:
    """Ends the process as `os._exit(code)` in the program would: no `finally`, no handler, nothing
    is flushed."""
    code = int(context.arguments["code"])
    recorder = context.recorder
    recorder.note(ExitNote(), f"os._exit({code})", recorder.safe_site(context.frame))
    context.announce()
    recorder.writer.phase(Phase.ENDED, code)
    os._exit(code)


def throw(context: Context) -> None:
    """The exception is raised at the program's line."""
    name, message = exception_of(context.arguments["error"])
    kind = getattr(builtins, name, None)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        raise CannotHappen(f"{name} is no built-in exception; name one, such as ValueError")
    try:
        error = kind(message)
    except TypeError:
        raise CannotHappen(
            f"{name} cannot be made of a text alone; name another exception, such as ValueError"
        ) from None
    context.announce()
    at_users_line(context.frame, "raise error", {"error": error})


def delay(context: Context) -> None:
    """The thread sleeps, as if the program's own line took so long."""
    seconds = float(context.arguments["delay_s"])
    sleep = partial(_sleep, context.recorder.waits.check)
    context.announce()
    at_users_line(context.frame, "sleep(seconds)", {"sleep": sleep, "seconds": seconds})


def hold(context: Context) -> None:
    """The thread waits until another rank has said, in the store, that it comes to its call."""
    store = default_store()
    if store is None:
        raise CannotHappen("there is no store yet through which ranks could wait for each other")
    key = arrival(context.arguments["until"], context.arguments["call"])
    context.announce()
    names = {"wait": partial(_wait_for, store, key, context.recorder.waits.check)}
    at_users_line(context.frame, "wait()", names)


def arrival(rank: int, call: int) -> str:
    """Returns the key that the rank sets as it comes to this call, if others are held until
    then."""
    return f"distdebug/hold/{rank}/{call}"


def _wait_for(store: Any, key: str, check: Callable[[], None]) -> None:
    """`check` raises when it must end."""
    while not store.check([key]):
        time.sleep(POLL_EVERY_S)
        check()


def hang(context: Context) -> None:
    """The thread does not come back, unless the verdict of the run is raised in it: asleep and at a
    lock it can be; in C it cannot, with or without the GIL, and has to be killed."""
    stay = _HANGS[context.arguments["how"]](context.recorder.waits.check)
    context.announce()
    at_users_line(context.frame, "stay()", {"stay": stay})


def _sleep(check: Callable[[], None], seconds: float) -> None:
    """`check` raises when it must end."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, POLL_EVERY_S))
        check()


def _lock_up(library: ctypes.CDLL) -> None:
    """Take a lock of C's that this thread holds already: no signal brings it out of there."""
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
    while True:
        library.pthread_mutex_lock(mutex)


_HANGS: dict[str, Callable[[Callable[[], None]], Callable[[], object]]] = {
    "sleep": lambda check: partial(_sleep, check, math.inf),
    "lock": lambda _check: threading.Semaphore(0).acquire,  # no frame of ours stands above it
    "gil": lambda _check: partial(_lock_up, ctypes.PyDLL(None)),
    "native": lambda _check: partial(_lock_up, ctypes.CDLL(None)),
}


_CGROUP_PREFIX = "distdebug-oom-"
_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""The file of a cgroup that has its limit, in version 2 and in version 1."""
_MEMORY_BYTES = 32 << 20
"""The bytes that the process may use beyond today's until the kernel's killer comes."""
_TOO_MUCH_BYTES = 1 << 30
_PORT = re.compile(r":(\d+)(?:[/?]|$)")


# -- memory ----------------------------------------------------------------------------------------


def run_out_of_memory(context: Context) -> None:
    """An allocation of the program's fails, or the kernel's OOM killer ends the process."""
    if context.arguments["how"] == "killer":
        _be_killed(context)
    else:
        # The limit holds for this allocation alone: a process that really runs out of memory
        # cannot tell of what, and its threads in C++ would abort.
        error = _memory_error()
        context.announce()
        at_users_line(context.frame, "raise error", {"error": error})


def _memory_error() -> MemoryError:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes(), hard))
    try:
        bytearray(_TOO_MUCH_BYTES)
    except MemoryError:
        return MemoryError(f"cannot allocate {_TOO_MUCH_BYTES} bytes (injected fault)")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    raise CannotHappen("this system sets a process no limit to its memory (RLIMIT_AS)")


def _be_killed(context: Context) -> None:
    """In a memory cgroup of its own, whose limit it then exceeds. Memory stays with the cgroup in
    which it was taken, so what the process has already does not count."""
    cgroup, limit = _own_cgroup()
    try:
        (cgroup / limit).write_text(str(_MEMORY_BYTES))
        for swap in ("memory.swap.max", "memory.swappiness"):
            with contextlib.suppress(OSError):
                (cgroup / swap).write_text("0")
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        with contextlib.suppress(OSError):
            cgroup.rmdir()
        raise CannotHappen(_no_cgroup(error)) from None
    context.announce()
    kept = []
    while True:
        kept.append(bytearray(b"\x01") * mmap.PAGESIZE * 256)


def _own_cgroup() -> tuple[Path, str]:
    """A new memory cgroup below this process's own, and the name of its limit."""
    error: OSError | None = None
    for parent in cgroup_folders("self", "memory"):
        # Removes cgroups whose only process was killed, and could not do it itself.
        with contextlib.suppress(OSError):
            for old in parent.glob(f"{_CGROUP_PREFIX}*"):
                if not proc.exists(old.name.removeprefix(_CGROUP_PREFIX)):
                    with contextlib.suppress(OSError):
                        old.rmdir()
        made = parent / f"{_CGROUP_PREFIX}{os.getpid()}"
        try:
            made.mkdir()
            for limit in _LIMITS:
                if (made / limit).exists():
                    return made, limit
            made.rmdir()
        except OSError as caught:
            error = caught
    raise CannotHappen(_no_cgroup(error))


def _no_cgroup(error: OSError | None) -> str:
    why = "there is no memory controller" if error is None else str(error.strerror).lower()
    return (
        f"the kernel's killer needs a memory cgroup of its own for the rank ({why}); run as root, "
        "or inject oom(how=allocation)"
    )


# -- a child ---------------------------------------------------------------------------------------


def fork(context: Context) -> None:
    """A forked child calls a barrier on its parent's group, and ends; the parent goes on."""
    group = context.group
    if group is None:
        raise CannotHappen("there is no process group yet that a forked child could use")
    context.announce()
    at_users_line(context.frame, "fork(group)", {"fork": _use_in_child, "group": group})


def _use_in_child(group: InjectedGroup) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # seconds, whatever the fork has left locked
        status = 1
        try:
            group.barrier().wait()
            status = 0
        finally:
            os._exit(status)
    with contextlib.suppress(ChildProcessError):  # the program has its children reaped
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.01)


# -- files and the store ---------------------------------------------------------------------------


def fill_disk(context: Context) -> None:
    """See the file's docstring. It lasts to the end of the process."""
    if signal.getsignal(signal.SIGXFSZ) is not signal.SIG_IGN:  # as Python itself has it
        raise CannotHappen("the program handles SIGXFSZ, which a file that cannot grow brings")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    context.announce()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


def drop_store(context: Context) -> None:
    """This process's connections to the TCPStore end; where it hosts the store, everybody's."""
    port = _store_port(context)
    found = list(_connections(port))
    if not found:
        raise CannotHappen(
            f"this rank has no connection to a TCPStore at port {port}; the fault needs one, as "
            "env:// and tcp:// make it"
        )
    context.announce()
    for connection in found:
        with connection, contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _store_port(context: Context) -> int:
    for address in (context.recorder.job, f":{os.environ.get('MASTER_PORT', '')}"):
        named = _PORT.search(address)
        if named:
            return int(named[1])
    raise CannotHappen("this rank has no TCPStore whose connection could break")


def _connections(port: int) -> Iterator[socket.socket]:
    """A duplicate of each of this process's TCP connections with this port at either end."""
    for number, leads_to in list(proc.open_files()):
        with contextlib.suppress(OSError):
            if not leads_to.startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(number))
            ends = _ports(connection)
            if port in ends:
                yield connection
            else:
                connection.close()


def _ports(connection: socket.socket) -> set[int]:
    """Returns the ports of a TCP connection: a listener's stays open, so that it can be told from a
    dead host."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return set()
    try:
        ends = (connection.getpeername(), connection.getsockname())
    except OSError:
        return set()
    return {int(end[1]) for end in ends}


ACTS: dict[str, Callable[[Context], None]] = {
    "kill": kill,
    "exit": leave,
    "raise": throw,
    "delay": delay,
    "hold": hold,
    "hang": hang,
    "oom": run_out_of_memory,
    "fork": fork,
    "fill-disk": fill_disk,
    "drop-store": drop_store,
}
