"""The life of one group: its transports, its calls, its first failure, its end.

A call runs as `begin`, the algorithm, `end`. Whatever breaks it off breaks the group: the bytes of
a call that was left half-way would be taken for those of the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from torch import Tensor

from ..base.deadline import Deadline
from ..errors import Aborted, GroupFailed, unusable
from ..limits import DRAIN_S, EXIT_DRAIN_S
from . import process_exit
from .call_queue import CallQueue
from .callbacks import Callbacks
from .work import FINISHED, CallWork, PendingWork

Body = Callable[[Any], object]
"""The body of a call, which runs in its turn on the network of the group's collectives."""


class Session:
    """The networks in which a group's calls run: of its collectives, and of its messages. It owns
    them, and the rendezvous they came from."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        rendezvous: Any,
        mesh: Any,
        mailbox: Any,
    ) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        self.rank = rank
        self.size = len(self.ranks)
        self.queue = CallQueue(f"group {name!r}")
        self._callbacks = Callbacks(f"group {name!r}")
        self.calls = 0
        self._rendezvous = rendezvous
        self._mesh = mesh
        self._mailbox = mailbox
        self._failure: BaseException | None = None
        self._lock = Lock()
        self._closed = False
        process_exit.watch(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "failed" if self._failure else "ready"
        return (
            f"<Session {self.name!r}: rank {self.rank} of {self.size}, {self.calls} calls, {state}>"
        )

    @property
    def failure(self) -> BaseException | None:
        """The first error, which made the group unusable."""
        return self._failure

    @property
    def token(self) -> str:
        """Different for groups of the same name that were made one after the other in a store."""
        return self._rendezvous.digest.hex()[:16]  # type: ignore[no-any-return]

    def start(
        self, text: str, timeout_s: float, at_once: bool, body: Body, tensors: Sequence[Tensor]
    ) -> CallWork:
        """Run a call on this thread, when its turn comes, or on the group's; `tensors` are what
        it writes."""
        if at_once:
            self.run_in_turn(text, timeout_s, body)
            return FINISHED
        if self._failure is not None:
            raise self.unusable()
        work = PendingWork(text, tensors, self._callbacks)

        def job() -> None:
            failed: BaseException | None = None
            try:
                self.run(text, timeout_s, body)
            except BaseException as error:
                failed = error
            work.finish(failed)

        self.queue.submit(job)
        return work

    def run(self, text: str, timeout_s: float, body: Body) -> None:
        """Run one call: the caller has the turn. Raises what `distcore.errors` describes."""
        if self._failure is not None:
            raise self.unusable()
        deadline = Deadline.after(timeout_s)
        mesh = self._mesh
        try:
            self.calls = mesh.begin(text, deadline) + 1
            body(mesh)
            mesh.end()
        except BaseException as error:
            mesh.fail(error)  # also after abort(): it is this thread that tells the peers
            self._broken(error, f"{text} failed")
            raise

    def run_in_turn(self, text: str, timeout_s: float, body: Body) -> None:
        """Runs a body as `run` does, after the calls that were made before."""
        if self._failure is not None:
            raise self.unusable()
        queue = self.queue
        queue.enter()
        try:
            self.run(text, timeout_s, body)
        finally:
            queue.leave()

    def mailbox(self) -> Any:
        """Point-to-point messages of this group."""
        if self._failure is not None:
            raise self.unusable()
        return self._mailbox

    def unusable(self) -> GroupFailed:
        """Returns the error that every call raises after the first failure, or the end."""
        return unusable(self.name, self.ranks, self._failure)

    def _broken(self, error: BaseException, what: str) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        reason = f"{what}: {str(error) or type(error).__name__}"
        self._mailbox.fail(error if isinstance(error, GroupFailed) else Aborted(reason))
        self._rendezvous.abort(reason)

    def drain(self, timeout_s: float) -> bool:
        """Wait until no call runs or waits, and no callback of a future; whether that came true in
        time."""
        until = time.monotonic() + timeout_s
        while True:
            for part in (self.queue, self._callbacks):
                if not part.drain(max(0.0, until - time.monotonic())):
                    return False
            if not self.queue.pending:  # a callback may have made a call
                return True

    def abort(self, reason: str) -> None:
        """End every call at once, those of the other ranks too. From any thread."""
        with self._lock:
            first = self._failure is None
            if first:
                self._failure = Aborted(f"group {self.name!r} was aborted: {reason}")
        if not first:
            return
        for part in (self._rendezvous, self._mesh, self._mailbox):
            part.abort(reason)
        # The peers are told by a thread that has the turn, after the call that this ends.
        failure = self._failure
        self.queue.submit(lambda: self._mesh.fail(failure))

    def close(self) -> None:
        """End the group. Calls that nobody waited for may finish for up to DRAIN_S."""
        process_exit.forget(self)
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._finish_pending("destroyed the group", DRAIN_S)
        with self._lock:
            if self._failure is None:
                self._failure = Aborted(f"group {self.name!r} was destroyed")
        for part in (self._mailbox, self._mesh, self._rendezvous):
            part.close()
        self.queue.stop()
        self._callbacks.stop()

    def close_gracefully(self) -> None:
        """The process ends, and the group is still open. Calls that nobody waited for may finish
        as for `close`; for up to EXIT_DRAIN_S where an exception ends it."""
        limit_s = EXIT_DRAIN_S if process_exit.by_an_exception() else DRAIN_S
        self._finish_pending("ended its process", limit_s)
        self._mailbox.close()
        self._mesh.close_gracefully()

    def _finish_pending(self, why: str, limit_s: float) -> None:
        if self._failure is None and not self.drain(limit_s):
            pending = self.queue.pending
            if pending:
                left = f"{pending} calls were pending"
            else:
                left = f"{self._callbacks.pending} callbacks of futures were running"
            self.abort(f"rank {self.ranks[self.rank]} {why} while {left}")
        self.drain(limit_s)

    def abandon(self) -> None:
        """This is a forked child: the connections are its parent's."""
        self._mailbox.abandon()
        self._mesh.abandon()
