"""The network of one group's collectives on MPI: runs its calls, and ends them when MPI would not.

A call is issued as one of MPI's non-blocking ones, and tested until it is done: at once, then
yielding the core, then with growing pauses. Meanwhile its `MpiWatch` is asked whether it can still
end well. MPI cannot take back a collective, so a call that is given up leaves its request and its
buffers behind (`library.abandon`), and the group is over.

For much data MPI's blocking calls are up to three times as fast. They are made once all ranks have
met in the call, and where they may take long by a thread of their own, so that they can be given
up.
"""

from __future__ import annotations

import array
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import CallMismatch, GroupFailed, PeerLost
from ..limits import CALL_PAUSE_S, CHECK_EVERY_S, FIRST_PAUSE_S, MOST_SPIN_S, SPIN_S
from . import library
from .blocking import BlockingThread
from .notices import Notices, fingerprint
from .watch import MpiWatch

_TESTS = 50
SPIN_S_PER_BYTE = 2e-9
"""MPI moves data only inside its own calls: no pauses for about as long as it is on its way."""
_APART_BYTES = 24 * 1024 * 1024
"""From here on (DDP's buckets are above it) a thread makes the blocking call. That costs 15 us and
warm caches, some 5 % of 4 to 16 MiB in shared memory; below, whoever waits is at MPI's mercy while
the data is on its way."""
_LOST = ("ERR_PROC_FAILED", "ERR_REVOKED", "ERR_PROC_ABORTED")
_now = time.monotonic


class MpiLine:
    """Stands in a `Session` for the mesh; bodies of calls get it as their network."""

    def __init__(self, mpi: Any, comm: Any, notices: Notices) -> None:
        self.comm = comm
        self.size = len(notices.ranks)
        self.rank = notices.rank
        self._mpi = mpi
        self._notices = notices
        self._watch = MpiWatch(notices)
        library.group_made(notices)
        self._failed = False
        self._apart: BlockingThread | None = None
        self._met: dict[int, tuple[array.array[int], list[Any]]] = {}

    def __repr__(self) -> str:
        return f"<Line of {self._notices.name!r}: {self._watch.calls} calls>"

    # -- what the session does ---------------------------------------------------------------------

    def begin(self, text: str, deadline: float) -> int:
        return self._watch.begin(text, deadline)

    def end(self) -> None:
        """The call is over."""

    def fail(self, error: BaseException) -> None:
        """The group is over: the others are told."""
        self._failed = True
        self._notices.tell(error)
        library.ask_at_end(self._notices.all_left)
        apart = self._apart
        if apart is not None:
            library.ask_at_end(lambda: apart.idle)

    def abort(self, reason: str) -> None:
        self._watch.aborted = reason

    def close(self) -> None:
        """Leave the group, and give the communicator back."""
        self._notices.leave(self._watch.calls)
        if self._apart is not None and self._apart.idle:
            self._apart.stop()
        if not self._failed and self._watch.aborted is None and not self._mpi.Is_finalized():
            self.comm.Free()

    def close_gracefully(self) -> None:
        self._notices.leave(self._watch.calls)

    def abandon(self) -> None:
        """A forked child has no part in its parent's MPI."""

    # -- what bodies do ----------------------------------------------------------------------------

    def run(self, size_bytes: int, kept: object, issue: Callable[..., Any], *args: Any) -> None:
        """Issue a non-blocking call of MPI's, and see it through. `kept`: what must live as long
        as MPI may use its memory."""
        try:
            request = issue(*args)
            test = request.Test
            for _ in range(_TESTS):
                if test():
                    return
            self._wait(test, size_bytes, request, args, kept)
        except self._mpi.Exception as error:
            raise self._trouble(error) from error

    def issue(self, call: Callable[..., Any], *args: Any) -> Any:
        """The request of a non-blocking call, for `run_all`."""
        try:
            return call(*args)
        except self._mpi.Exception as error:
            raise self._trouble(error) from error

    def run_all(self, size_bytes: int, requests: Sequence[Any], *kept: object) -> None:
        """See several requests through."""
        if not requests:
            return
        test_all = self._mpi.Request.Testall
        listed = list(requests)

        def test() -> bool:
            return bool(test_all(listed))

        try:
            for _ in range(_TESTS):
                if test():
                    return
            self._wait(test, size_bytes, listed, *kept)
        except self._mpi.Exception as error:
            raise self._trouble(error) from error

    def meet(self, *own: int) -> Sequence[int]:
        """Wait until all ranks are in this call; the largest of each of `own`, of all ranks.
        CallMismatch when they are in different ones."""
        found = self._met.get(len(own))
        if found is None:
            mine = array.array("q", [0] * (2 + len(own)))
            found = self._met[len(own)] = mine, [mine, len(mine), self._mpi.INT64_T]
        mine, spec = found
        mark = fingerprint(self._watch.text)
        mine[0] = mark
        mine[1] = -mark
        for index, one in enumerate(own, 2):
            mine[index] = one
        mpi = self._mpi
        self.run(len(mine) * 8, mine, self.comm.Iallreduce, mpi.IN_PLACE, spec, mpi.MAX)
        if mine[0] != -mine[1]:
            raise self._watch.mismatch()
        self._watch.all_came()
        return mine[2:]

    def block(self, size_bytes: int, kept: object, call: Callable[..., Any], *args: Any) -> None:
        """Make a blocking call of MPI's; after `meet`."""
        try:
            if size_bytes < _APART_BYTES:
                call(*args)
            else:
                self._block_apart(call, args, kept)
        except self._mpi.Exception as error:
            raise self._trouble(error) from error

    # -- waiting -----------------------------------------------------------------------------------

    def _block_apart(self, call: Callable[..., Any], args: Sequence[Any], kept: object) -> None:
        if self._apart is None:
            self._apart = BlockingThread(f"distcore mpi calls of {self._notices.name}")
        self._apart.start(call, *args)
        wait = self._watch.wait()
        try:
            while not self._apart.over(CHECK_EVERY_S):
                wait.look()
        except self._mpi.Exception:
            raise
        except BaseException:
            library.abandon(args, kept)
            raise

    def _wait(self, test: Callable[[], bool], size_bytes: int, *used: object) -> None:
        try:
            self._wait_for(test, size_bytes)
        except self._mpi.Exception:
            raise
        except BaseException:
            library.abandon(*used)
            raise

    def _wait_for(self, test: Callable[[], bool], size_bytes: int) -> None:
        until = _now() + min(SPIN_S + size_bytes * SPIN_S_PER_BYTE, MOST_SPIN_S)
        while _now() < until:
            os.sched_yield()
            for _ in range(_TESTS):
                if test():
                    return
        wait = self._watch.wait()
        pause_s = FIRST_PAUSE_S
        while not test():
            wait.look()
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, CALL_PAUSE_S)

    def _trouble(self, error: Any) -> GroupFailed:
        return from_mpi(self._mpi, error, self._watch.who)


def from_mpi(mpi: Any, error: Any, what: str) -> GroupFailed:
    """An error of MPI's as one of ours."""
    said = f"{what}: MPI says {error.Get_error_string()}"
    kind = error.Get_error_class()
    if kind == mpi.ERR_TRUNCATE:
        return CallMismatch(f"{said}: a peer sent more than this rank's call expects")
    if kind in {getattr(mpi, name, None) for name in _LOST}:
        return PeerLost(said)
    return GroupFailed(said)
