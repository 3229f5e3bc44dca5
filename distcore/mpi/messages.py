"""Messages between two ranks of a group on MPI, on a communicator of their own.

Whoever waits for a message tests it; a thread of the group tests those that nobody waits for, with
pauses, so that a big one gets on while the program computes.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .. import limits
from ..base.background_thread import BackgroundThread
from ..base.call_text import message
from ..base.deadline import extended, timed_out
from ..errors import Aborted, CallMismatch, DeadlineExceeded, GroupFailed, PeerLost
from . import library
from .line import SPIN_S_PER_BYTE, from_mpi
from .notices import Notices

_TESTS = 50
_IDLE_PAUSES = 50
_BLOCK_BYTES = 1024 * 1024
_now = time.monotonic


@dataclass(eq=False)
class MpiPosting:
    """A send or receive that was posted; see `matching.Posting`."""

    _messages: Messages
    request: Any
    _data: Any
    peer: int | None
    deadline: float
    expected: int
    """Bytes to receive; -1: it is a send."""
    _text: tuple[str, int]
    """What is sent, and torch's tag."""
    error: GroupFailed | None = None
    owner: object = None
    done: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _left_at: float | None = None

    def __post_init__(self) -> None:
        self.source = -1 if self.peer is None else self.peer
        self._status = self._messages.mpi.Status() if self.expected >= 0 else None

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "pending"
        return f"<{self.what}: {state}>"

    @property
    def what(self) -> str:
        """`send(dst=1, float32[4], tag=0)`"""
        return self._messages.what(self.expected >= 0, self.peer, *self._text)

    def test(self) -> bool:
        """Whether it is over, well or badly."""
        if not self.done:
            with self._lock:
                if not self.done:
                    self._test()
        return self.done

    def _test(self) -> None:
        status = self._status
        try:
            if not self.request.Test(status):
                return
        except self._messages.mpi.Exception as error:
            self._finish(from_mpi(self._messages.mpi, error, self.what))
            return
        wrong = None
        if status is not None:
            self.source = status.source
            came = status.Get_elements(self._messages.mpi.BYTE)
            if came != self.expected:
                rank = self._messages.notices.ranks[self.source]
                wrong = CallMismatch(
                    f"{self.what}: rank {rank} sent {came} bytes, this rank expects {self.expected}"
                )
        self._finish(wrong)

    def fail(self, error: GroupFailed) -> None:
        """Fails the message, which will never be over by itself: MPI is told to give it up."""
        with self._lock:
            if self.done:
                return
            over = False
            if self.expected >= 0:
                try:
                    self.request.Cancel()
                    over = self.request.Test()
                except self._messages.mpi.Exception:
                    pass
            if not over:
                library.abandon(self.request, self.owner)
            self._finish(error)

    def _finish(self, error: GroupFailed | None) -> None:
        self.error = error
        self.done = True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over; False when `timeout_s` ran out before. Raises its error."""
        test = self.test
        for _ in range(_TESTS):
            if test():
                break
        else:
            if not self._spin() and not self._messages.wait(self, timeout_s):
                return False
        if self.error is not None:
            raise self.error
        return True

    def _spin(self) -> bool:
        """Wait for about as long as the data needs, at which MPI works only when it is called."""
        until = _now() + min(limits.SPIN_S + len(self._data) * SPIN_S_PER_BYTE, limits.MOST_SPIN_S)
        while not self.test():
            if _now() >= until:
                return False
            os.sched_yield()
        return True

    def look(self, now: float) -> None:
        """End it where it is clear that it will not end: its time is up, or the peer has gone."""
        if now >= self.deadline:
            self.deadline = extended(self.deadline)
            if now >= self.deadline:
                self.fail(self._messages.too_late(self))
                return
        gone = self._messages.gone(self.peer)
        if gone is None:
            return
        if self._left_at is None:
            self._left_at = now
        elif now >= self._left_at + limits.LEFT_S:
            if not isinstance(gone, GroupFailed):
                rank = None if self.peer is None else self._messages.notices.ranks[self.peer]
                gone = PeerLost(f"{self.what}: {gone}", rank)
            self.fail(gone)


class Messages:
    """Stands in a `Session` for the mailbox."""

    def __init__(self, mpi: Any, comm: Any, notices: Notices, most_tag: int) -> None:
        """`most_tag`: the largest that this MPI has."""
        self.mpi = mpi
        self.notices = notices
        self._comm = comm
        self._most_tag = most_tag
        self._error: GroupFailed | None = None
        self._pending: set[MpiPosting] = set()
        self._changed = threading.Condition()
        self._thread: BackgroundThread | None = None
        self._ended = False
        self._sleeps = False
        self._looked = 0.0
        self._told: GroupFailed | None = None
        self._left: dict[int, int] = {}

    def post_send(
        self, peer: int, tag: int, data: Any, deadline: float, text: str = ""
    ) -> MpiPosting:
        """Send `data`, which must not change before it is over; `text` says what it is."""
        return self._post(self._comm.Isend, data, peer, tag, deadline, -1, text)

    def post_receive(
        self, peer: int | None, tag: int, data: Any, deadline: float, text: str = ""
    ) -> MpiPosting:
        """Receive the peer's next message with this tag; None: the next of anybody's."""
        return self._post(self._comm.Irecv, data, peer, tag, deadline, len(data), text)

    def _post(
        self,
        issue: Any,
        data: Any,
        peer: int | None,
        tag: int,
        deadline: float,
        expected: int,
        text: str,
    ) -> MpiPosting:
        mpi = self.mpi
        whom = mpi.ANY_SOURCE if peer is None else peer
        if tag > self._most_tag:
            raise ValueError(f"tag {tag}: this MPI has none above {self._most_tag}")
        try:
            request = issue(_counted(mpi, data), whom, tag)
        except mpi.Exception as error:
            raise from_mpi(mpi, error, self.what(expected >= 0, peer, text, tag)) from error
        posting = MpiPosting(self, request, data, peer, deadline, expected, (text, tag))
        if self._error is not None:
            posting.fail(self._error)
        elif not posting.test():
            with self._changed:
                self._pending.add(posting)
                if self._thread is None:
                    name = f"distcore messages of {self.notices.name}"
                    self._thread = BackgroundThread(self._run, name)
                    self._thread.start()
                elif self._sleeps:
                    self._changed.notify()
        return posting

    def what(self, receives: bool, peer: int | None, text: str, tag: int) -> str:
        """`send(dst=1, float32[4], tag=0)`"""
        rank = None if peer is None else self.notices.ranks[peer]
        return message("recv" if receives else "send", rank, tag, text)

    # -- waiting -----------------------------------------------------------------------------------

    def wait(self, posting: MpiPosting, timeout_s: float | None) -> bool:
        """On the thread of whoever waits."""
        until = None if timeout_s is None else _now() + timeout_s
        pause_s = limits.FIRST_PAUSE_S
        while not posting.test():
            now = _now()
            if until is not None and now >= until:
                return False
            self._look(now)
            posting.look(now)
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, limits.MESSAGE_PAUSE_S)
        return True

    def _run(self) -> None:
        """Tests the messages that no thread waits for. A waiting thread is faster: this one is in
        no hurry, and sleeps on for a while where there is nothing, so that a post need not wake it.
        """
        idle = 0
        while True:
            time.sleep(limits.MESSAGE_PAUSE_S)
            with self._changed:
                idle = 0 if self._pending else idle + 1
                if idle > _IDLE_PAUSES and not self._ended:
                    self._sleeps = True
                    self._changed.wait()
                    self._sleeps = False
                    idle = 0
                if self._ended:
                    return
                pending = list(self._pending)
            over = {posting for posting in pending if posting.test()}
            if over:
                with self._changed:
                    self._pending -= over
            now = _now()
            self._look(now)
            for posting in pending:
                if posting not in over:
                    posting.look(now)

    def _look(self, now: float) -> None:
        if now < self._looked + limits.LOOK_AGAIN_S:
            return
        self._looked = now
        self._told = self.notices.told()
        self._left = self.notices.left()

    def gone(self, peer: int | None) -> GroupFailed | str | None:
        """Why nothing can come of this peer, or anybody (None), any more; None if it can."""
        if self._told is not None:
            return self._told
        if peer is not None:
            rank = self.notices.ranks[peer]
            return f"rank {rank} has left the group" if peer in self._left else None
        if len(self._left) == len(self.notices.ranks) - 1:
            return "all other ranks have left the group"
        return None

    def too_late(self, posting: MpiPosting) -> DeadlineExceeded:
        limit_s = getattr(posting.deadline, "limit_s", 0.0)
        ranks = self.notices.ranks
        me = ranks[self.notices.rank]
        text = f"{posting.what} on rank {me} is not complete after its timeout of {limit_s:g} s"
        culprit = None
        if posting.peer is not None:
            culprit = ranks[posting.peer]
            place = self.notices.positions().get(posting.peer)
            where = "has not posted its part" if place is None else f"waits in {place[1]}"
            text += f": rank {culprit} {where}"
        return DeadlineExceeded(text + timed_out(posting.deadline), culprit)

    # -- the end -----------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        self.fail(Aborted(reason))

    def fail(self, error: GroupFailed) -> None:
        """The group has failed: everything posted, now or later, ends with this error."""
        self._error = self._error or error
        with self._changed:
            pending, self._pending = self._pending, set()
        for posting in pending:
            posting.fail(self._error)

    def close(self) -> None:
        """Let sends get through for a while, then leave."""
        until = _now() + limits.DRAIN_S
        while self._error is None and _now() < until:
            with self._changed:
                sending = [one for one in self._pending if one.expected < 0]
            if all(one.test() for one in sending):
                break
            time.sleep(limits.MESSAGE_PAUSE_S)
        self.fail(Aborted(f"group {self.notices.name!r} was destroyed"))
        with self._changed:
            self._ended = True
            self._changed.notify()
        thread = self._thread
        if thread is not None and not thread.is_here():
            thread.join()

    def abandon(self) -> None:
        """A forked child has no part in its parent's MPI."""


def _counted(mpi: Any, data: Any) -> list[Any]:
    """The bytes, in units of which MPI can count them: a message cannot go in pieces that another
    sender's could come between."""
    length_bytes = len(data)
    if length_bytes < 2**31:
        return [data, mpi.BYTE]
    blocks, rest = divmod(length_bytes, _BLOCK_BYTES)
    block = mpi.BYTE.Create_contiguous(_BLOCK_BYTES)
    whole = mpi.Datatype.Create_struct(
        [blocks, rest], [0, blocks * _BLOCK_BYTES], [block, mpi.BYTE]
    ).Commit()
    block.Free()
    return [data, 1, whole]
