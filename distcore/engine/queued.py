"""The base of engines whose calls run one at a time on threads, in a `Session`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import call_text
from ..base.buffers import bytes_of
from ..base.deadline import Deadline
from ..base.reduction import Reduction
from .base import MessageRequest
from .session import Body, Session
from .staging import DeviceReach, Staging
from .work import CallWork, JoinedWork, PostedWork

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.session!r}>"

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
        text, timeout_s, tensor, peer, tag, tensors, arrived = message
        kind = call_text.tensor(tensor.dtype, tensor.numel())
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
