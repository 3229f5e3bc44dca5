"""The end of a process, or its fork, with groups still open.

Programs end without destroying their groups. Peers that need nothing from such a rank any more must
not take it for lost: it closes the connections gracefully. A forked child holds copies of its
parent's connections, and would keep them open after the parent's death: it closes them.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from multiprocessing import util
from typing import Any

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_beside: weakref.WeakSet[Any] = weakref.WeakSet()
_watching_process = 0


def watch(group: Any) -> None:
    """Registers a group. When the process ends, its `close_gracefully()` finishes what was begun,
    and tells the peers that this rank will take no part any more. Afterwards no thread of the group
    is within torch's code: one that is when the interpreter is finalised is ended inside a C++
    destructor, and takes the process with it. In a forked child its `abandon()` closes the child's
    copies of the connections, and says nothing."""
    global _watching_process
    _open.add(group)
    if _watching_process == os.getpid():
        return
    if not _watching_process:
        os.register_at_fork(after_in_child=_abandon_all)
        atexit.register(_close_all_gracefully)
    _watching_process = os.getpid()
    # Children of multiprocessing end past atexit.
    util.Finalize(None, _close_all_gracefully, exitpriority=-100)


def forget(group: Any) -> None:
    """Removes a group that has been closed."""
    _open.discard(group)


def watch_beside(network: Any) -> None:
    """Registers a network beside a group, whose calls can do without it, for `close_beside` to
    close. Its `failure` is the first error, which made it unusable."""
    _beside.add(network)


def close_beside() -> bool:
    """The process is about to wait for its peers, and will not answer any more: those that wait for
    it on a network beside a group would wait for ever, for it said only that it would leave, and
    what tells them that it has is the end of the connection. Whether one of them had failed."""
    every = list(_beside)
    failed = any(network.failure is not None for network in every)
    for network in every:
        network.close()
    return failed


def by_an_exception() -> bool:
    """Whether the end of this process, which is on its way, is that of an uncaught exception."""
    # A child of multiprocessing closes them while it handles it, an interpreter afterwards.
    return sys.exc_info()[0] is not None or getattr(sys, "last_value", None) is not None


def _close_all_gracefully() -> None:
    for group in list(_open):
        group.close_gracefully()


def _abandon_all() -> None:
    for group in list(_open):
        group.abandon()
    _open.clear()
    _beside.clear()
