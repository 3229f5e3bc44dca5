"""The changes in a file of digests (`record.replicas`), which a node tells."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from ..record.safe_files import open_regular
from .mirror import MOST_REPLICA_BYTES

_CHUNK = 4096
_LINE = 64


class ReplicaSource:
    """A file of digests. Raises OSError and ValueError where it is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = open_regular(path)
        try:
            self.size = os.fstat(descriptor).st_size
            if not 0 < self.size <= MOST_REPLICA_BYTES:
                raise ValueError(f"{path} is of no size that digests have")
            self._map = mmap.mmap(descriptor, self.size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._told = bytearray(self.size)

    def anew(self) -> None:
        """Nothing counts as told."""
        self._told = bytearray(self.size)

    def sample(self, still_calls: int = 0) -> list[tuple[int, bytes]]:
        """Returns what has changed."""
        del still_calls  # there are none here
        try:
            if os.stat(self.path).st_size < self.size:
                return []  # cut short: reading what is mapped would end us
        except OSError:
            pass  # it has no name any more: what is mapped stays
        found = []
        for at in range(0, self.size, _CHUNK):
            chunk = self._map[at : at + _CHUNK]
            if chunk == self._told[at : at + _CHUNK]:
                continue
            for line in range(0, len(chunk), _LINE):
                piece = chunk[line : line + _LINE]
                if piece != self._told[at + line : at + line + len(piece)]:
                    found.append((at + line, piece))
            self._told[at : at + len(chunk)] = chunk
        return found
