"""The running hash of a sequence of calls, as a record has it after one more; by its definition."""

from __future__ import annotations

from debugger.record.signature import CHAIN_STEP, MASK


def extend_chain(chain: int, value: int) -> int:
    """`value` is the 64-bit hash of what comes next."""
    return (chain * CHAIN_STEP + value) & MASK
