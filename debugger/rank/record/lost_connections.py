"""Whether an error is one of lost communication, and which connection it is about, if it says so.

What a backend refuses at once is another matter: then nothing was sent."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch.distributed

from distcore.errors import GroupFailed

from ...errors.in_ranks import FindingRaised
from ...record.safe_text import whole_number
from .exception_text import name_of, text_of, titled

_DistError: type[Exception] = torch.distributed.DistError

_COMMUNICATION = re.compile(
    r"connection (closed|reset|refused|was)|closed by peer|timed? ?out|broken pipe|"
    r"socket|connectFullMesh|watchdog|recvvalue|sendbytes|"
    r"mismatch between collectives|"
    # distcore's own, as torch's C++ code quotes them.
    r"\b(PeerLost|DeadlineExceeded|CorruptFrame|CallMismatch|Aborted): ",
    re.IGNORECASE,
)
_REFUSED_LATE = re.compile(
    r"^(Cannot use ReduceOp\.|ReduceOp\.\w+ (is )?not supported|Invalid scalar type|"
    r"Unhandled ReduceOp|Split sizes doesn't match|Number of tensor splits not|"
    r"Tensor's dim 0 does not divide|\[enforce fail at \S*gloo/alltoallv?\.cc)"
)
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


@dataclass(frozen=True, slots=True)
class LostCall:
    """The last call of this process that ended because communication was lost: its number, how
    many calls there were by then, and its error in words. The error itself would keep alive what
    its frames hold."""

    number: int
    calls: int
    type: str
    message: str
    link: tuple[int, int] | None

    @classmethod
    def of(cls, error: BaseException, number: int, calls: int) -> LostCall | None:
        """None where the error is of another kind."""
        if not isinstance(error, Exception) or not is_lost(error):
            return None
        return cls(number, calls, name_of(error), titled(error), named_by(error))


def is_lost(error: BaseException) -> bool:
    """Whether communication was lost: by the backend's words or, of our own, by its type."""
    return isinstance(error, GroupFailed) or bool(_COMMUNICATION.search(text_of(error)))


def is_refusal(error: BaseException, op: str, backend: str) -> bool:
    """Whether this, raised by a backend's method before there was a work, only says that the call's
    arguments are wrong, so that the other ranks never meet the call.

    Not a finding of ours; DistError is what NCCL calls its own failures. gloo counts an all-to-all
    before it looks at the splits: its next calls do not meet those of ranks that made none.
    """
    if isinstance(error, FindingRaised | _DistError) or op == "monitored_barrier":
        return False
    if op == "all_to_all_single" and "gloo" in backend:
        return False
    return isinstance(error, Exception) and not is_lost(error)


def is_late_refusal(error: BaseException) -> bool:
    """Whether gloo says of the arguments of a call that it has begun that they are wrong: what it
    reduces with which op, and how an all-to-all is split, it asks in the thread that makes the
    call."""
    return bool(_REFUSED_LATE.search(text_of(error)))


def named_by(error: BaseException) -> tuple[int, int] | None:
    """The global ranks of the connection's sender and receiver; None where that is not known.

    distcore's errors name them. Other backends name the other end's address, which is one rank's
    alone where ranks have a network of their own.
    """
    if isinstance(error, GroupFailed):
        return error.link
    rank = whole_number(os.environ.get("DISTDEBUG_NETWORK_RANK"))
    if rank is None or not isinstance(error, RuntimeError):
        return None
    from ...record import network  # most runs have none

    named = {network.rank_at(text) for text in _ADDRESS.findall(text_of(error))}
    peers = [one for one in named if one is not None and one != rank]
    return (peers[0], rank) if len(peers) == 1 else None
