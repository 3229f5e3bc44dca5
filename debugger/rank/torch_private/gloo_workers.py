"""Lets gloo's worker threads come to rest before the interpreter, or a group, ends.

A worker drops a call's tensors some time after the call's waiter has gone on, and needs the GIL for
their Python parts. Where the interpreter is being finalised meanwhile, Python ends that thread
inside a C++ destructor, and the process aborts ("terminate called without an active exception"): a
program that did everything right dies of SIGABRT. Stock torch 2.13 does so as well, in 3 of 60
ranks on a busy machine.
"""

from __future__ import annotations

import contextlib
import time

from ...system import proc
from ..limits import GLOO_LOOK_EVERY_S, GLOO_WORKERS_S

_WORKER = "pt_gloo_runloop"
_CALM_LOOKS = 7
"""Longer than Python's switch interval, 5 ms: who waits for the GIL wakes up that often to ask."""


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
            time.sleep(GLOO_LOOK_EVERY_S)  # gives the GIL to a worker that waits for it


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
