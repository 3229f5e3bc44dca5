"""The life of one group (its transports, its calls, its first failure, its end), and the base of
the engines whose calls run in it, one at a time, on threads.

A call runs as `begin`, the algorithm, `end`. Whatever breaks it off breaks the group: the bytes of
a call that was left half-way would be taken for those of the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..base.buffers import bytes_of
from ..base.deadline import Deadline
from ..base.reduction import Reduction
from ..errors import Aborted, GroupFailed, unusable
from ..limits import DRAIN_S, EXIT_DRAIN_S
from . import process_exit
from .base import Body, MessageRequest
from .call_queue import Callbacks, CallQueue
from .staging import DeviceReach, Staging
from .work import FINISHED, CallWork, JoinedWork, PendingWork, PostedWork


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
        if self._failure is not None:
            raise self.unusable()
        if at_once:
            self.queue.enter()
            try:
                self.run(text, timeout_s, body)
            finally:
                self.queue.leave()
            return FINISHED
        work = PendingWork(text, tensors, self._callbacks)

        def job() -> None:
            failed: BaseException | None = None
            try:
                self.run(text, timeout_s, body)
            except BaseException as error:
                failed = error
            work.finish(failed)

        work.run_here = partial(self.queue.run_here, job)
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
            if self._failure is not None:
                return
            self._failure = failure = Aborted(f"group {self.name!r} was aborted: {reason}")
        for part in (self._rendezvous, self._mesh, self._mailbox):
            part.abort(reason)
        # The peers are told by a thread that has the turn, after the call that this ends.
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


_BUCKET_BYTES = 256 * 1024
"""Above this a message's own cost is small beside its bytes', and copying into a bucket is not."""


class QueuedEngine:
    """An engine without the planners of the collectives: all else of `engine.Engine`."""

    def __init__(self, name: str, session: Session, reach: DeviceReach) -> None:
        self.name = name
        self.session = session
        self.reach = reach
        self.start = session.start
        self._memory: Callable[[Tensor], Any] = bytes_of

    def staging(self) -> Staging:
        return Staging(self.reach)

    def all_reduce(self, tensor: Tensor, reduction: Reduction) -> Body:
        raise NotImplementedError

    def together(self, bodies: Sequence[Body]) -> Body:
        def body(net: Any) -> None:
            for one in bodies:
                one(net)

        return body

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], reductions: Sequence[Reduction]
    ) -> Body:
        """Small neighbours of one dtype travel in one message."""
        return self.together(
            [self._bucket(bucket, its) for bucket, its in _buckets(tensors, reductions)]
        )

    def _bucket(self, bucket: Sequence[Tensor], reduction: Reduction) -> Body:
        if len(bucket) == 1:
            return self.all_reduce(bucket[0], reduction)
        counts = [one.numel() for one in bucket]
        flat = torch.empty(sum(counts), dtype=bucket[0].dtype, device=bucket[0].device)
        parts = torch.split(flat, counts)
        reduce = self.all_reduce(flat, reduction)

        def body(net: Any) -> None:
            for one, part in zip(bucket, parts, strict=True):
                part.copy_(one.view(-1))
            reduce(net)
            for one, part in zip(bucket, parts, strict=True):
                one.view(-1).copy_(part)

        return body

    def send(self, message: MessageRequest) -> CallWork:
        return self._posted(self.session.mailbox().post_send, message)

    def receive(self, message: MessageRequest) -> CallWork:
        return self._posted(self.session.mailbox().post_receive, message)

    def _posted(self, post: Callable[..., Any], message: MessageRequest) -> CallWork:
        text, kind, timeout_s, tensor, peer, tag, tensors, arrived = message
        posting = post(peer, tag, self._memory(tensor), Deadline.after(timeout_s), kind)
        # A view of bytes does not keep its memory alive, and a program may drop the handle.
        posting.owner = tensors
        return PostedWork(text, posting, tensors, arrived)

    def begin_batch(self) -> None:
        """Nothing to do: calls do not wait for each other."""

    def end_batch(self, works: Sequence[Any]) -> CallWork:
        return JoinedWork(works)


def _buckets(
    tensors: Sequence[Tensor], reductions: Sequence[Reduction]
) -> Iterator[tuple[list[Tensor], Reduction]]:
    """Neighbours of one dtype and device, up to `_BUCKET_BYTES` together; cut alike on all ranks,
    for the call's text says how many elements each has."""
    bucket: list[Tensor] = []
    filled = 0
    its: Reduction | None = None
    for one, reduction in zip(tensors, reductions, strict=True):
        if bucket and (
            one.dtype is not bucket[0].dtype
            or one.device != bucket[0].device
            or filled + one.nbytes > _BUCKET_BYTES
        ):
            assert its is not None
            yield bucket, its
            bucket, filled = [], 0
        bucket.append(one)
        filled += one.nbytes
        its = reduction
    if bucket:
        assert its is not None
        yield bucket, its
