"""The network of one group's collectives on MPI: runs its calls, and ends them when MPI would not.

A call is issued as one of MPI's non-blocking ones, and tested until it is done: at once, then
yielding the core, then with growing pauses. Meanwhile the deadline, an abort and the other ranks'
notices are looked at. MPI cannot take back a collective, so a call that ends early leaves its
request and its buffers behind (`library.abandon`), and the group is over.
"""

from __future__ import annotations

import array
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Aborted, CallMismatch, DeadlineExceeded, GroupFailed, PeerLost
from ..patience import extended
from . import library
from .notices import Notices, fingerprint

_TESTS = 50
SPIN_S = 0.0002
SPIN_S_PER_BYTE = 2e-9
"""MPI moves data only inside its own calls: no pauses for about as long as it is on its way."""
MOST_SPIN_S = 0.05
_FIRST_PAUSE_S = 0.00005
_LAST_PAUSE_S = 0.001
_FIRST_LOOK_S = 0.1
_LAST_LOOK_S = 0.5
_PLACE_S = 0.5
"""After so much waiting, or a quarter of the time limit, a rank tells where it waits."""
_WORD_S = 2.0
_LOST = ("ERR_PROC_FAILED", "ERR_REVOKED", "ERR_PROC_ABORTED")
_now = time.monotonic


class Line:
    """Stands in a `Session` for the mesh; bodies of calls get it as their network."""

    def __init__(self, mpi: Any, comm: Any, notices: Notices) -> None:
        self.comm = comm
        self.size = len(notices.ranks)
        self.rank = notices.rank
        self._mpi = mpi
        self._notices = notices
        self._calls = 0
        self._text = ""
        self._deadline = float("inf")
        self._aborted: str | None = None
        self._failed = False
        self._mine = array.array("q", (0, 0))

    def __repr__(self) -> str:
        return f"<Line of {self._notices.name!r}: {self._calls} calls>"

    # -- what the session does ---------------------------------------------------------------------

    def begin(self, text: str, deadline: float) -> int:
        self._text = text
        self._deadline = deadline
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

    def abort(self, reason: str) -> None:
        self._aborted = reason

    def close(self) -> None:
        """Leave the group, and give the communicator back."""
        self._notices.leave(self._calls)
        if not self._failed and self._aborted is None and not self._mpi.Is_finalized():
            self.comm.Free()

    def say_goodbye(self) -> None:
        self._notices.leave(self._calls)

    def let_go(self) -> None:
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

    def block(self, call: Callable[..., Any], *args: Any) -> None:
        """Make a blocking call of MPI's, which is faster for much data; after `meet`."""
        try:
            call(*args)
        except self._mpi.Exception as error:
            raise self._trouble(error) from error

    def meet(self) -> None:
        """Wait until all ranks are in this call. CallMismatch when they are in different ones."""
        mine = self._mine
        mine[0] = fingerprint(self._text)
        mine[1] = -mine[0]
        mpi = self._mpi
        spec = [mine, 2, mpi.INT64_T]
        self.run(16, mine, self.comm.Iallreduce, mpi.IN_PLACE, spec, mpi.MAX)
        if mine[0] != -mine[1]:
            self._notices.waiting(self._calls - 1, self._text)
            until = _now() + _WORD_S
            while _now() < until:
                self._compare()
                time.sleep(_LAST_PAUSE_S)
            raise CallMismatch(f"{self._who()}: the other ranks are in other calls")

    # -- waiting -----------------------------------------------------------------------------------

    def _wait(self, test: Callable[[], bool], size_bytes: int, *used: object) -> None:
        try:
            self._wait_for(test, size_bytes)
        except self._mpi.Exception:
            raise
        except BaseException:
            library.abandon(*used)
            raise

    def _wait_for(self, test: Callable[[], bool], size_bytes: int) -> None:
        began = _now()
        until = began + min(SPIN_S + size_bytes * SPIN_S_PER_BYTE, MOST_SPIN_S)
        while _now() < until:
            if test():
                return
            os.sched_yield()
        pause_s = _FIRST_PAUSE_S
        look_after_s = _FIRST_LOOK_S
        next_look = began + look_after_s
        place_at = began + min(_PLACE_S, (self._deadline - began) / 4)
        while not test():
            if self._aborted is not None:
                raise Aborted(self._aborted)
            now = _now()
            if now >= self._deadline:
                self._deadline = extended(self._deadline)
                if now >= self._deadline:
                    self._too_late()
            if now >= next_look or now >= place_at:
                if now >= place_at:
                    self._notices.waiting(self._calls - 1, self._text)
                    place_at = float("inf")
                self._look()
                look_after_s = min(2 * look_after_s, _LAST_LOOK_S)
                next_look = now + look_after_s
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LAST_PAUSE_S)

    def _look(self) -> None:
        """What the others say."""
        told = self._notices.told()
        if told is not None:
            raise told
        gone = [peer for peer, calls in self._notices.left().items() if calls < self._calls]
        if gone:
            rank = self._notices.ranks[gone[0]]
            raise PeerLost(f"{self._who()}: rank {rank} has left the group", rank)
        self._compare()
        if self._notices.lost:
            raise PeerLost(f"{self._who()}: the store that the ranks share is gone")

    def _compare(self) -> None:
        """Whether the others are in the same call, as far as they tell."""
        number = self._calls - 1
        for peer, (theirs, text) in self._notices.positions().items():
            if theirs == number and text != self._text:
                rank = self._notices.ranks[peer]
                raise CallMismatch(f"{self._who()}: rank {rank} is in {text} there")

    def _too_late(self) -> None:
        self._compare()
        number = self._calls - 1
        positions = self._notices.positions()
        there = {peer for peer, (theirs, _) in positions.items() if theirs >= number} | {self.rank}
        ranks = self._notices.ranks
        absent = [ranks[peer] for peer in range(self.size) if peer not in there]
        limit_s = getattr(self._deadline, "limit_s", 0.0)
        text = f"{self._who()} is not complete after {limit_s:g} s"
        if absent:
            named = ", ".join(map(str, absent))
            text += f": rank{'s' if len(absent) > 1 else ''} {named} did not come to it"
        raise DeadlineExceeded(text, absent[0] if absent else None)

    def _who(self) -> str:
        notices = self._notices
        call = f"{self._text}, collective #{self._calls - 1} of group {notices.name!r}"
        return f"{call}, rank {notices.ranks[self.rank]}"

    def _trouble(self, error: Any) -> GroupFailed:
        return from_mpi(self._mpi, error, self._who())


def from_mpi(mpi: Any, error: Any, what: str) -> GroupFailed:
    """An error of MPI's as one of ours."""
    said = f"{what}: MPI says {error.Get_error_string()}"
    kind = error.Get_error_class()
    if kind == mpi.ERR_TRUNCATE:
        return CallMismatch(f"{said}: a peer sent more than this rank's call expects")
    if kind in {getattr(mpi, name, None) for name in _LOST}:
        return PeerLost(said)
    return GroupFailed(said)
