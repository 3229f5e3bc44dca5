"""Find the first call at which two ranks differ, from their hash chains.

Chains that are equal after n calls were equal after every number below n, so the first difference
is found by stepping back from the end in growing steps and then halving. What a rank's ring has
overwritten is unknown; the checkpoints of a chain, every 64th call, still narrow it down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Chain = Callable[[int], int | None]
"""The running hash after that many calls, or None when it was overwritten."""

CHECKPOINT_EVERY = 64
CHECKPOINTS = 16


@dataclass(frozen=True, slots=True)
class Divergence:
    """The calls `seq` are the first known to differ. Not `exact`: they may have differed before."""

    seq: int
    exact: bool


def first_divergence(one: Chain, other: Chain, issued: int) -> Divergence | None:
    """The first difference among the first `issued` calls; None where none is known."""

    def same(count: int) -> bool | None:
        if count == 0:
            return True
        left, right = one(count), other(count)
        return None if left is None or right is None else left == right

    if same(issued) is not False:
        return None
    differ, low, step = issued, 0, 1
    while differ - step > 0:
        answer = same(differ - step)
        if answer is True:
            low = differ - step
            break
        if answer is None:
            low = differ - step  # nothing is known there: look only above it
            break
        differ -= step
        step *= 2
    while differ - low > 1:
        middle = (low + differ) // 2
        answer = same(middle)
        if answer is False:
            differ = middle
        else:
            low = middle
    if same(differ - 1) is not None:
        return Divergence(differ - 1, exact=True)
    return _by_checkpoints(same, differ)


def _by_checkpoints(same: Callable[[int], bool | None], differ: int) -> Divergence:
    at = (differ - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    for _ in range(CHECKPOINTS + 1):
        answer = same(at)
        if answer is True or at <= 0:
            return Divergence(differ - 1, exact=False)
        if answer is False:
            differ = at
        at -= CHECKPOINT_EVERY
    return Divergence(differ - 1, exact=False)
