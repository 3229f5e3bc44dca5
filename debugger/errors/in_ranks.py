"""The errors that findings are raised as. Each is also one of torch's, as fits what was found, so
that the `except` clauses of a program hold. Imports torch.
"""

from __future__ import annotations

from torch.distributed import DistBackendError, DistError, DistNetworkError, DistStoreError

from distcore.errors import BarrierFailed

from ..record.kinds import Family, kind_of

__all__ = [
    "AbsentRankError",
    "BarrierFailed",
    "DataError",
    "DeadlockError",
    "FindingRaised",
    "MismatchError",
    "StoreWaitError",
    "error_of",
]


class FindingRaised(DistError):
    """A finding, raised in a rank. `kind` is its kind, as in a report; the text is its sentence.
    `own`: this rank found it itself."""

    def __init__(self, kind: str, message: str, own: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.own = own


class MismatchError(FindingRaised, DistBackendError):
    """Ranks make calls that do not match."""


class DeadlockError(FindingRaised, DistBackendError):
    """Ranks wait for each other in a cycle."""


class AbsentRankError(FindingRaised, DistNetworkError):
    """A rank that others wait for is late, has left, or is dead."""


class StoreWaitError(FindingRaised, DistStoreError):
    """A rank that others wait for is itself waiting for a key of a store that nobody sets."""


class DataError(FindingRaised):
    """The data that are communicated are wrong: a NaN, an overflow, a buffer that changes in
    flight, ..."""


_BY_FAMILY: dict[Family, type[FindingRaised]] = {
    Family.MISMATCH: MismatchError,
    Family.DEADLOCK: DeadlockError,
    Family.ABSENCE: AbsentRankError,
    Family.DATA: DataError,
}

# What a traceback calls them; their module has another name inside a rank.
for _error in {FindingRaised, StoreWaitError, *_BY_FAMILY.values()}:
    _error.__module__ = "distdebug"


def error_of(kind: str, message: str, cause: str | None = None, own: bool = False) -> FindingRaised:
    """The error for a finding of this kind, by its family (of any other: plain FindingRaised)."""
    if cause == "store":
        return StoreWaitError(kind, message, own)
    return _BY_FAMILY.get(kind_of(kind).family, FindingRaised)(kind, message, own)
