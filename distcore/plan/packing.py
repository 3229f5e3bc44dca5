"""Large tensors of integers that hold little: shapes in a long row of zeros, masks, positions.

They steer programs as small ones do, and a few KiB say all of them.
"""

from __future__ import annotations

import zlib

_LEVEL = 1
_SAMPLE_BYTES = 1 << 16
RATIO = 256
"""Nothing is thought to become smaller than by this."""


def packed(data: bytes, most_bytes: int) -> bytes | None:
    """These in fewer bytes; None where that makes more than `most_bytes`."""
    if len(data) > RATIO * most_bytes:
        return None
    # Data that is no such thing is known by a piece of it, which costs a millisecond.
    middle = max(0, (len(data) - _SAMPLE_BYTES) // 2)
    sample = data[middle : middle + _SAMPLE_BYTES]
    if len(zlib.compress(sample, _LEVEL)) * len(data) > 4 * most_bytes * len(sample):
        return None
    found = zlib.compress(data, _LEVEL)
    return found if len(found) <= most_bytes else None


def unpacked(value: bytes | None, size_bytes: int) -> bytes | None:
    """Returns `size_bytes` bytes, as they are or from `packed`; None where it is something else."""
    if value is None or len(value) == size_bytes:
        return value
    if len(value) > size_bytes:
        return None
    try:
        found = zlib.decompressobj().decompress(value, size_bytes + 1)
    except zlib.error:
        return None
    return found if len(found) == size_bytes else None
