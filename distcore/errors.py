"""The errors of a group. Each is one of torch's as well, so that `except` clauses hold."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed import DistBackendError, DistError, DistNetworkError, DistStoreError


class GroupFailed(DistBackendError):
    """A call could not be completed, and the group cannot be used any more.

    `culprit` is the global rank that failed first, as far as anybody knows (None: nobody's fault,
    or everybody's). `link`: where a connection broke, or brought nothing or nonsense, the global
    ranks of its sender and its receiver: then the culprit may be well, and the way between bad.
    """

    in_torchs_words = ""
    """The words that programs look for in the messages of torch's own backends."""
    and_no_more = ""

    def __init__(
        self,
        message: str,
        culprit: int | None = None,
        link: tuple[int, int] | None = None,
    ) -> None:
        if self.in_torchs_words not in message:
            message = f"{message} ({self.in_torchs_words}{self.and_no_more})"
        super().__init__(message)
        self.culprit = culprit
        self.link = link


class PeerLost(GroupFailed, DistNetworkError):
    """A peer's connection ended, was reset, or does not answer any more."""

    in_torchs_words = "Connection closed by peer"


class CallMismatch(GroupFailed):
    """A peer sent data of another call than the one this rank is in."""


class DeadlineExceeded(GroupFailed, TimeoutError):
    """The group's timeout ran out before the call was complete."""

    in_torchs_words = "timed out after"
    and_no_more = " its limit"


class CorruptFrame(GroupFailed, DistNetworkError):
    """The bytes that arrived are not those that were sent: a wrong checksum, length or order."""


class Aborted(GroupFailed):
    """`abort()` was called on the group."""


KINDS = {
    kind.__name__: kind
    for kind in (PeerLost, CallMismatch, DeadlineExceeded, CorruptFrame, Aborted, GroupFailed)
}
"""The errors of a group that ranks pass on to each other, by name."""


class RendezvousError(DistError):
    """The ranks of a group did not find or did not accept each other."""


class StoreFailed(RendezvousError, DistStoreError):
    """The store in which they look for each other does not answer any more."""


def unusable(name: str, ranks: Sequence[int], first: BaseException | None) -> GroupFailed:
    """Returns the error that every call of a group raises after its first failure, or its end."""
    message = f"group {name!r} (global ranks {list(ranks)}) cannot be used any more"
    if isinstance(first, Aborted):
        return GroupFailed(f"{message}: {first}")
    error = GroupFailed(
        f"{message}: {type(first).__name__}: {first}\n"
        "  destroy the group and create it again to go on",
        getattr(first, "culprit", None),
        getattr(first, "link", None),
    )
    error.__cause__ = first
    return error


class BarrierFailed(DistBackendError, TimeoutError):
    """A rank did not reach the barrier in time. The group can still be used. `missing`: the global
    ranks that did not come; `reason`: the part of the message that is the same on all ranks."""

    def __init__(self, message: str, missing: Sequence[int], reason: str) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.reason = reason
        self.finding: object = None
        """The finding that an observer made of it."""
