"""The MPI library: whether it is there, its start, and its end in a process that gave up waiting.

The only file that imports mpi4py. Nothing is loaded before the first group (or the question whether
there is an MPI) asks for it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..base.linux import mapped_files
from ..engine import process_exit
from ..limits import REST_PAUSE_S

INSTALL = "pip install 'distdebug[mpi]'"


_lock = threading.Lock()
_loaded: Any = None
_process = 0
"""The process that has loaded the library."""
_abandoned: list[object] = []
_others_left: list[Callable[[], bool]] = []
_groups: weakref.WeakSet[Any] = weakref.WeakSet()


@functools.cache
def unavailable() -> str | None:
    """Why there is no MPI for torch here, with the next step; None if there is. Initialises
    nothing."""
    missing = "backend mpi needs mpi4py and an MPI library, and"
    try:
        found = importlib.util.find_spec("mpi4py")
    except (ImportError, ValueError):
        found = None
    if found is None:
        return f"{missing} mpi4py is not installed: {INSTALL}"
    if "mpi4py.MPI" in sys.modules:
        return None
    try:
        # Wheels of mpi4py look for a library when they are imported; built ones are linked to it.
        from mpi4py import _mpiabi
    except ImportError:
        return None
    if not hasattr(_mpiabi, "_get_mpiabi"):
        return None
    try:
        _mpiabi._get_mpiabi()
    except RuntimeError:
        return f"{missing} mpi4py finds no MPI library: {INSTALL}"
    return None


def start() -> Any:
    """mpi4py's module MPI, initialised. Raises RuntimeError, in one sentence, where it cannot be
    used."""
    global _loaded, _process
    with _lock:
        if _loaded is not None:
            return _loaded
        reason = unavailable()
        if reason is not None:
            raise RuntimeError(reason)
        if "mpi4py.MPI" not in sys.modules:
            import mpi4py

            if mpi4py.rc.finalize is None:
                mpi4py.rc.finalize = False  # `_end` does it, unless it would wait for ever
                atexit.register(_end)
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise RuntimeError(f"backend mpi cannot load MPI ({first}): {INSTALL}") from error
        if MPI.Is_finalized():
            raise RuntimeError("backend mpi cannot be used after MPI_Finalize()")
        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeError(
                "backend mpi calls MPI from several threads, and MPI was initialised without "
                "MPI_THREAD_MULTIPLE: leave mpi4py.rc.thread_level at 'multiple'"
            )
        _loaded, _process = MPI, os.getpid()
        return MPI


def abandon(*used: object) -> None:
    """MPI may still write where these point, though nobody waits for it any more: a request of a
    call that was broken off, and its buffers. They stay for as long as the process."""
    _abandoned.extend(used)


def ask_at_end(others_left: Callable[[], bool]) -> None:
    """A group has failed: before MPI ends, ask whether its other ranks are at their end as well."""
    _others_left.append(others_left)


def group_made(notices: Any) -> None:
    """Registers a group. If a side channel has failed, the groups are asked who has left."""
    _groups.add(notices)


def _end() -> None:
    """Ends MPI at the process's end. MPI_Finalize waits for the other ranks: after a failure only
    where they are known to come to it, or else this process ends without, and the launcher ends the
    others."""
    # A forked child is not MPI's. (One that was forked before the start, by a parent that had only
    # imported this, may start MPI as well, and is one of its ranks.)
    if _loaded is None or _loaded.Is_finalized() or os.getpid() != _process:
        return
    if process_exit.close_beside():
        # Some rank did not come, and no group has heard of it: its call has not entered MPI.
        _others_left.extend(group.all_left for group in list(_groups))
    until = time.monotonic() + 5.0  # seconds for the others to get here
    while not all(left() for left in _others_left):
        if time.monotonic() >= until:
            return
        time.sleep(REST_PAUSE_S)
    alone = _loaded.COMM_WORLD.Get_size() == 1
    segments = mapped_files("sm_segment.") if alone else []
    _loaded.Finalize()
    # Of a process that no launcher started, Open MPI leaves its 16 MiB of shared memory behind.
    for path in segments:
        with contextlib.suppress(OSError):
            os.unlink(path)


def query_cuda() -> bool:
    """Whether this MPI takes addresses of GPU memory, by its own word or the user's:
    DISTCORE_MPI_CUDA=1 or 0."""
    said = os.environ.get("DISTCORE_MPI_CUDA", "")
    if said:
        return said != "0"
    # In the process already, whatever its name is: mpi4py has loaded it.
    import ctypes

    for name in mapped_files("libmpi"):
        try:
            ask = ctypes.CDLL(name).MPIX_Query_cuda_support
        except (OSError, AttributeError):
            continue
        ask.restype = ctypes.c_int
        return bool(ask())
    return False
