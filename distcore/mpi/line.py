"""The network of one group's collectives on MPI: runs its calls, and ends them when MPI would not.

A call is issued as one of MPI's non-blocking ones, and tested until it is done: at once, then
yielding the core, then with growing pauses. Meanwhile it looks whether the call can still end well:
its deadline, an abort, and what the other ranks say. MPI cannot take back a collective, so a call
that is given up leaves its request and its buffers behind (`library.abandon`), and the group is
over.

For much data MPI's blocking calls are up to three times as fast. They are made once all ranks have
met in the call, and where they may take long by a thread of their own, so that they can be given
up.
"""

from __future__ import annotations

import array
import os
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from ..base.deadline import extended, timed_out
from ..engine.call_queue import CallQueue
from ..errors import Aborted, CallMismatch, DeadlineExceeded, GroupFailed, PeerLost
from ..limits import (
    CALL_PAUSE_S,
    CHECK_EVERY_S,
    FIRST_PAUSE_S,
    LOOK_AGAIN_S,
    MOST_SPIN_S,
    SPIN_S,
)
from . import library
from .notices import Notices, fingerprint

_now = time.monotonic


_TESTS = 50
SPIN_S_PER_BYTE = 2e-9
"""MPI moves data only inside its own calls: no pauses for about as long as it is on its way."""
_APART_BYTES = 24 * 1024 * 1024
"""From here on (DDP's buckets are above it) a thread makes the blocking call. That costs 15 us and
warm caches, some 5 % of 4 to 16 MiB in shared memory; below, whoever waits is at MPI's mercy while
the data is on its way."""
_LOST = ("ERR_PROC_FAILED", "ERR_REVOKED", "ERR_PROC_ABORTED")


class MpiLine:
    """Stands in a `Session` for the mesh; bodies of calls get it as their network."""

    def __init__(self, mpi: Any, comm: Any, notices: Notices) -> None:
        self.comm = comm
        self.size = len(notices.ranks)
        self.rank = notices.rank
        self._mpi = mpi
        self._notices = notices
        self._calls = 0
        self._text = ""
        self._aborted: str | None = None
        self._deadline = float("inf")
        self._all_came = False
        """Whether every rank is known to be in the call: who is missing now has stopped in it."""
        library.group_made(notices)
        self._failed = False
        self._apart = CallQueue(f"mpi calls of {notices.name}")
        self._met: dict[int, tuple[array.array[int], list[Any]]] = {}

    # -- what the session does ---------------------------------------------------------------------

    def begin(self, text: str, deadline: float) -> int:
        """The number of the call that begins."""
        self._text = text
        self._deadline = deadline
        self._all_came = False
        number = self._calls
        self._calls = number + 1
        return number

    def end(self) -> None:
        """The call is over."""

    def fail(self, error: BaseException) -> None:
        """The group is over: the others are told."""
        self._failed = True
        self._notices.tell(error)
        library.ask_at_end(self._notices.all_left)
        library.ask_at_end(lambda: not self._apart.pending)

    def abort(self, reason: str) -> None:
        self._aborted = reason

    def close(self) -> None:
        """Leave the group, and give the communicator back."""
        self._notices.leave(self._calls)
        self._apart.stop()
        if not self._failed and self._aborted is None and not self._mpi.Is_finalized():
            self.comm.Free()

    def close_gracefully(self) -> None:
        self._notices.leave(self._calls)

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
        mark = fingerprint(self._text)
        mine[0] = mark
        mine[1] = -mark
        for index, one in enumerate(own, 2):
            mine[index] = one
        mpi = self._mpi
        self.run(len(mine) * 8, mine, self.comm.Iallreduce, mpi.IN_PLACE, spec, mpi.MAX)
        if mine[0] != -mine[1]:
            raise self._mismatch()
        self._all_came = True
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
        """On a thread of its own: who waits for it can give up, MPI cannot. Such a call keeps the
        thread for as long as MPI keeps the call."""
        over, failed = Lock(), list[BaseException]()
        over.acquire()

        def make() -> None:
            try:
                call(*args)
            except BaseException as error:
                failed.append(error)
            over.release()

        self._apart.submit(make)
        self._begin_wait()
        try:
            while not over.acquire(timeout=CHECK_EVERY_S):
                self._look()
        except BaseException:
            library.abandon(args, kept)
            raise
        if failed:
            raise failed[0]

    def _wait(self, test: Callable[[], bool], size_bytes: int, *used: object) -> None:
        try:
            until = _now() + min(SPIN_S + size_bytes * SPIN_S_PER_BYTE, MOST_SPIN_S)
            while _now() < until:
                os.sched_yield()
                for _ in range(_TESTS):
                    if test():
                        return
            self._begin_wait()
            pause_s = FIRST_PAUSE_S
            while not test():
                self._look()
                time.sleep(pause_s)
                pause_s = min(1.2 * pause_s, CALL_PAUSE_S)
        except self._mpi.Exception:
            raise
        except BaseException:
            library.abandon(*used)
            raise

    def _trouble(self, error: Any) -> GroupFailed:
        return from_mpi(self._mpi, error, self._who)

    def _begin_wait(self) -> None:
        """A wait in the call begins, in which `_look` is called again and again."""
        self._looked = now = _now()
        self._next_look = now + LOOK_AGAIN_S
        # When it tells where it waits: after half a second, or a quarter of the time limit.
        self._place_at = now + min(0.5, (self._deadline - now) / 4)

    def _look(self) -> None:
        """Raises what ends the call, if anything does: an abort, its time, what others say."""
        now = _now()
        if now > self._looked + 1.0:  # this rank was stopped itself: first, what the others say
            self._ask_others()
        self._looked = now
        if self._aborted is not None:
            raise Aborted(self._aborted)
        if now >= self._deadline:
            self._deadline = extended(self._deadline)
            if now >= self._deadline:
                self._compare()
                raise self._too_late()
        if now >= self._place_at:
            self._place_at = float("inf")
            self._next_look = now
            self._tell_place()
        if now >= self._next_look:
            self._ask_others()
            self._next_look = now + LOOK_AGAIN_S

    @property
    def _who(self) -> str:
        """`barrier(), collective #3 of group '0', rank 1`"""
        notices = self._notices
        call = f"{self._text}, collective #{self._calls - 1} of group {notices.name!r}"
        return f"{call}, rank {notices.ranks[notices.rank]}"

    def _mismatch(self) -> CallMismatch:
        """Other ranks are in other calls: which, as soon as one tells, within two seconds."""
        self._tell_place()
        until = _now() + 2.0
        try:
            while _now() < until:
                self._compare()
                time.sleep(CALL_PAUSE_S)
        except CallMismatch as found:
            return found
        return CallMismatch(f"{self._who}: the other ranks are in other calls")

    def _tell_place(self) -> None:
        """Tell the others where this rank is."""
        self._notices.waiting(self._calls - 1, self._text)

    def _ask_others(self) -> None:
        """Raises where the others say that nothing will come of this call."""
        told = self._notices.told()
        if told is not None:
            raise told
        gone = [peer for peer, calls in self._notices.left().items() if calls < self._calls]
        if gone:
            rank = self._notices.ranks[gone[0]]
            raise PeerLost(f"{self._who}: rank {rank} has left the group", rank)
        self._compare()
        if self._notices.lost:
            raise PeerLost(f"{self._who}: the store that the ranks share is gone")

    def _compare(self) -> None:
        """Raises where another rank says that it is in another call."""
        number = self._calls - 1
        for peer, (theirs, text) in self._notices.positions().items():
            if theirs == number and text != self._text:
                rank = self._notices.ranks[peer]
                raise CallMismatch(f"{self._who}: rank {rank} is in {text} there")

    def _too_late(self) -> DeadlineExceeded:
        number = self._calls - 1
        notices = self._notices
        there = {peer for peer, (theirs, _) in notices.positions().items() if theirs >= number}
        there.add(notices.rank)
        absent = [rank for peer, rank in enumerate(notices.ranks) if peer not in there]
        limit_s = getattr(self._deadline, "limit_s", 0.0)
        text = f"{self._who} is not complete after its timeout of {limit_s:g} s"
        culprit = None
        if absent:
            named = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
            if not self._all_came:
                culprit, did = absent[0], "did not come to it"
            else:
                # One may have stopped in it; others may be through with it, and have gone on.
                culprit = absent[0] if len(absent) == 1 else None
                did = "came to it, and told nothing since"
            text += f": {named} {did}"
        return DeadlineExceeded(text + timed_out(self._deadline), culprit)


def from_mpi(mpi: Any, error: Any, what: str) -> GroupFailed:
    """An error of MPI's as one of ours."""
    said = f"{what}: MPI says {error.Get_error_string()}"
    kind = error.Get_error_class()
    if kind == mpi.ERR_TRUNCATE:
        return CallMismatch(f"{said}: a peer sent more than this rank's call expects")
    if kind in {getattr(mpi, name, None) for name in _LOST}:
        return PeerLost(said)
    return GroupFailed(said)
