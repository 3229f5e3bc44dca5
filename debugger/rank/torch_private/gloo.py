"""gloo's connections, and its worker threads.

Closing its connections is the only way to free a thread that waits in its C++ code. DDP's reducer
waits for futures of gloo's works below `loss.backward()`, where no signal is looked at, and a group
cannot be aborted while somebody waits. So that a verdict reaches such a thread, the sockets that
gloo opened are remembered, and shut down when the run is over anyway: gloo then fails every call at
once, at no cost to any call before.

Its workers must come to rest before the interpreter, or a group, ends. One drops a call's tensors
some time after the call's waiter has gone on, and needs the GIL for their Python parts. Where the
interpreter is being finalised meanwhile, Python ends that thread inside a C++ destructor, and the
process aborts ("terminate called without an active exception"): a program that did everything right
dies of SIGABRT. Stock torch 2.13 does so as well, in 3 of 60 ranks on a busy machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

from ...system import proc
from ..limits import GLOO_WORKERS_S

_WORKER = "pt_gloo_runloop"
_CALM_LOOKS = 7
"""Longer than Python's switch interval, 5 ms: who waits for the GIL wakes up that often to ask."""


class GlooSockets:
    """The connections of this process's groups."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, str]] = {}
        """Descriptor, socket (`socket:[inode]`) and group of every one."""

    @contextlib.contextmanager
    def remembered(self, group: str = "") -> Iterator[None]:
        """Sockets that are opened in here belong to a group; its name, for `shut_down` of it
        alone."""
        before = _sockets()
        yield
        self._known.update(
            (number, (name, group))
            for number, name in _sockets().items()
            if before.get(number) != name
        )

    def belong_to(self, group: str) -> bool:
        """Whether the group has connections that can be shut down."""
        return any(owner == group for _, owner in list(self._known.values()))

    def shut_down(self, group: str | None = None) -> bool:
        """End every connection of this process's groups, or of one group; whether there was one."""
        found = False
        for number, (name, owner) in list(self._known.items()):
            # The heartbeat's thread and one that waits read the run's verdict at the same time.
            if group not in (None, owner) or self._known.pop(number, None) is None:
                continue
            with contextlib.suppress(OSError):
                # The number may be somebody else's by now.
                if os.readlink(proc.path_of(number)) == name:
                    with socket.socket(fileno=os.dup(number)) as connection:
                        connection.getpeername()  # raises for gloo's listener, which must live on
                        connection.shutdown(socket.SHUT_RDWR)
                    found = True
        return found

    def forget(self) -> None:
        """Forgets the connections in a forked child: they are the parent's."""
        self._known.clear()


class NoSockets(GlooSockets):
    """A stand-in where nothing goes over a wire. A real look costs a listing of all descriptors for
    each group that is made, of which a mesh of many ranks makes hundreds."""

    @contextlib.contextmanager
    def remembered(self, group: str = "") -> Iterator[None]:
        del group
        yield


def _sockets() -> dict[int, str]:
    with contextlib.suppress(OSError):
        return {number: to for number, to in proc.open_files() if to.startswith("socket:")}
    return {}


def settle() -> None:
    """Return when no worker of gloo has anything left to do, or is blocked in a call; after a
    second at the latest. About 8 ms for a process with groups, nothing for others."""
    with contextlib.suppress(Exception):  # the program may have replaced `open`, or the clock
        workers = [one for one in proc.threads() if proc.name(one, proc.tasks()) == _WORKER]
        deadline = time.monotonic() + GLOO_WORKERS_S
        before = None
        calm = 0
        while workers and calm < _CALM_LOOKS and time.monotonic() < deadline:
            now = [_resting_since(worker) for worker in workers]
            calm = calm + 1 if None not in now and now == before else 0
            before = now
            time.sleep(0.001)  # gives the GIL to a worker that waits for it


def _resting_since(worker: int) -> int | None:
    """Returns how often the thread has gone to sleep, if it sleeps; 0 when it is gone, None when it
    runs.

    One that is ready to run but gets no processor counts as running.
    """
    status = proc.read_status(worker, proc.tasks())
    if not status:
        return 0
    if not status.get("State", "").startswith("S"):
        return None
    return int(status.get("voluntary_ctxt_switches", 0))
