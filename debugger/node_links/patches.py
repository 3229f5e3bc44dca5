"""Changes of files as they go over the wire: which file, where, what. Packed, bounded, checked."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from struct import Struct, error
from typing import NamedTuple

_HEAD = Struct("<III")
"""number of the file, offset, length"""
MOST_UNPACKED_BYTES = 64 << 20
MOST_PART_BYTES = 4 << 20
"""The most bytes in one message: on a slow network a greater one would take longer to arrive than a
node may be silent."""
_PACK_FROM_BYTES = 512


class Patch(NamedTuple):
    """`data` stands at `offset` of the node's `file`-th file."""

    file: int
    offset: int
    data: bytes


class PatchError(ValueError):
    """These bytes are no patches."""


def packed(patches: Iterable[Patch]) -> bytes:
    """Packs all patches behind one byte that says how."""
    plain = b"".join(
        part
        for one in patches
        for part in (_HEAD.pack(one.file, one.offset, len(one.data)), one.data)
    )
    if len(plain) < _PACK_FROM_BYTES:
        return b"\0" + plain if plain else b""
    return b"\1" + zlib.compress(plain, 1)


def bounded(patches: Iterable[Patch]) -> list[list[Patch]]:
    """The same in order, in parts that can be sent: at least one, be it empty."""
    parts: list[list[Patch]] = [[]]
    size = 0
    for one in patches:
        if parts[-1] and size + len(one.data) > MOST_PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += _HEAD.size + len(one.data)
    return parts


def unpacked(blob: bytes) -> Iterator[Patch]:
    """Raises PatchError, before anything is yielded that could be wrong in itself."""
    if not blob:
        return
    plain = blob[1:]
    if blob[:1] == b"\1":
        inflater = zlib.decompressobj()
        try:
            plain = inflater.decompress(plain, MOST_UNPACKED_BYTES)
        except zlib.error as fault:
            raise PatchError(f"patches that cannot be unpacked: {fault}") from None
        if inflater.unconsumed_tail:
            raise PatchError(f"patches of more than {MOST_UNPACKED_BYTES >> 20} MiB")
    elif blob[:1] != b"\0":
        raise PatchError("patches of an unknown form")
    at = 0
    found = []
    while at < len(plain):
        try:
            file, offset, length = _HEAD.unpack_from(plain, at)
        except error:
            raise PatchError("patches that end in the middle") from None
        at += _HEAD.size
        if at + length > len(plain):
            raise PatchError("patches that end in the middle")
        found.append(Patch(file, offset, plain[at : at + length]))
        at += length
    yield from found
