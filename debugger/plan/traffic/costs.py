"""The cost of a call by the usual algorithms, in the model of latency and bandwidth: a message of
N bytes takes alpha + N beta, whoever else sends (Hockney, "The communication challenge for MPP"
(1994)). A rank can send and receive at a time; what the reductions compute is not counted.

| algorithm | source |
|---|---|
| ring | Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009) |
| doubling, halving, tree, scatter_gather, pairwise | Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005) |
| bruck | Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing systems" (1997) |
| dissemination | Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988) |

They are the costs that distcore's own algorithms have (a test counts their messages). A library on
GPUs may do better within a node, and none does better over the links than the least bytes of these.
"""  # noqa: E501 (a table)

from __future__ import annotations

from dataclasses import dataclass

from ...record.ops import Pattern, op_of
from ...record.signature import Signature, call_bytes, item_bytes, tensors_bytes


@dataclass(frozen=True, slots=True)
class Link:
    """Between any two ranks: the time of an empty message, and what passes in a second."""

    latency_us: float = 10.0
    bandwidth_gbs: float = 25.0

    def time_us(self, cost: Cost) -> float:
        """The time of one call; a GB is 10**9 bytes."""
        return cost.rounds * self.latency_us + cost.size_bytes / (self.bandwidth_gbs * 1e3)

    def __str__(self) -> str:
        return f"{self.latency_us:g} us and {self.bandwidth_gbs:g} GB/s"


@dataclass(frozen=True, slots=True)
class Cost:
    """The messages one after the other, and the bytes in them: of the rank that is last."""

    algorithm: str
    rounds: int
    size_bytes: float


def costs(signature: Signature, size: int, place: int = 0) -> tuple[Cost, ...]:
    """By each algorithm that does this op in a group of `size` ranks, of which the caller is at
    `place`. A group of one sends nothing."""
    if size < 2:
        return ()
    given = call_bytes(signature)
    low = size.bit_length() - 1
    high = (size - 1).bit_length()
    match op_of(signature.op).pattern:
        case Pattern.ALL_REDUCE:
            return _all_reduce(given, size, low, high)
        case Pattern.BROADCAST:
            return (
                Cost("tree", high, high * given),
                Cost("scatter_gather", high + size - 1, 2 * _share(given, size)),
            )
        case Pattern.REDUCE:
            return (
                Cost("tree", high, high * given),
                Cost("halving", 2 * high, 2 * _share(given, size)),
            )
        case Pattern.ALL_GATHER:
            others = max(tensors_bytes(signature.others), size * given) - given
            return (Cost("ring", size - 1, others), Cost("bruck", high, others))
        case Pattern.GATHER | Pattern.SCATTER:
            others = (size - 1) * given
            return (Cost("tree", high, others), Cost("direct", size - 1, others))
        case Pattern.REDUCE_SCATTER:
            ring = Cost("ring", size - 1, _share(given, size))
            halving = Cost("halving", low, _share(given, size))
            return (ring, halving) if low == high else (ring,)
        case Pattern.ALL_TO_ALL:
            return _all_to_all(signature, given, size, place, high)
        case Pattern.BARRIER:
            return (Cost("dissemination", high, 0),)
        case Pattern.MONITORED_BARRIER:
            return (Cost("direct", 2 * (size - 1), 0),)
        case Pattern.MESSAGE:
            return (Cost("message", 1, given),)
        case _:
            return ()


def _all_reduce(given: int, size: int, low: int, high: int) -> tuple[Cost, ...]:
    """The costs of an all-reduce. Where the size is no power of two, the ranks above the last one
    hand theirs in before, and get the result after it."""
    extra = 0 if low == high else 2
    whole = 1 << low
    return (
        Cost("ring", 2 * (size - 1), 2 * _share(given, size)),
        Cost("doubling", low + extra, (low + extra) * given),
        Cost("halving", 2 * low + extra, 2 * _share(given, whole) + extra * given),
        Cost("tree", 2 * high, 2 * high * given),
    )


def _all_to_all(
    signature: Signature, given: int, size: int, place: int, high: int
) -> tuple[Cost, ...]:
    dtype = signature.tensors[0][0] if signature.tensors else "uint8"
    own = signature.sends[place] * item_bytes(dtype) if place < len(signature.sends) else 0
    pairwise = Cost("pairwise", size - 1, given - own)
    even = len(set(signature.sends)) <= 1
    return (pairwise, Cost("bruck", high, high * given / 2)) if even else (pairwise,)


def _share(given: int, size: int) -> float:
    """Returns what is left without one of `size` equal parts."""
    return given * (size - 1) / size
