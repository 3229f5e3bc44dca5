"""The elements that the calls of `bench comm` move and must give, whoever carries them; without
torch.

Sizes are counted as nccl-tests counts them, in float32. Where every rank has its share of the
buffer, a size is rounded up to one that all ranks share evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = 4
_SHARED = {"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"}


@dataclass(frozen=True)
class Layout:
    """The buffers of one rank, in elements; `target` is None where the source is written to.

    When rank r's source is filled with r + 1, the target's equal parts hold `expected` afterwards.
    """

    source: int
    target: int | None
    expected: list[float]


def true_size(op: str, size_bytes: int, ranks: int) -> int:
    """Returns what a call of about `size_bytes` moves; 0 for a barrier."""
    if op == "barrier":
        return 0
    unit = ELEMENT_BYTES * (ranks if op in _SHARED else 1)
    return max(1, -(-size_bytes // unit)) * unit


def layout(op: str, size_bytes: int, rank: int, ranks: int) -> Layout:
    """The buffers of `rank`. `size_bytes` comes from `true_size`."""
    count = size_bytes // ELEMENT_BYTES
    total = [ranks * (ranks + 1) / 2]
    each = [number + 1.0 for number in range(ranks)]
    match op:
        case "all_reduce":
            return Layout(count, None, total)
        case "broadcast":
            return Layout(count, None, each[:1])
        case "all_gather_into_tensor":
            return Layout(count // ranks, count, each)
        case "reduce_scatter_tensor":
            return Layout(count, count // ranks, total)
        case "all_to_all_single":
            return Layout(count, count, each)
        case "send_recv":
            return Layout(count, count, [each[neighbours(rank, ranks)[1]]])
        case "barrier":
            return Layout(0, None, [0.0])
    raise ValueError(f"unknown operation {op!r}")


def neighbours(rank: int, ranks: int) -> tuple[int, int]:
    """Returns whom `rank` sends to and receives from in `send_recv`: a ring, as in nccl-tests'
    sendrecv."""
    return (rank + 1) % ranks, (rank - 1) % ranks
