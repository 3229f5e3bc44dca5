"""What a hash chain is, one value at a time: the record itself is written in a faster way."""

from __future__ import annotations

from distdebug.record.signature import CHAIN_STEP, MASK


def extend_chain(chain: int, value: int) -> int:
    """The running hash of a sequence after one more value: a polynomial in `CHAIN_STEP`, mod
    2**64, whose coefficients are the values, 64-bit hashes themselves."""
    return (chain * CHAIN_STEP + value) & MASK
