"""torch's tags, of 32 bits, as MPI's, which end at a bound of its own.

A tag in the lower half of MPI's range is itself. For another one the ranks of a group agree,
through the store, on a number in the upper half, when it is used for the first time.
"""

from __future__ import annotations

import threading
from typing import Any


class Tags:
    """The tags of one group; `store` has a prefix that only this group uses (None: a group of
    one)."""

    def __init__(self, store: Any, bound: int) -> None:
        self._store = store
        self._half = bound // 2
        self._bound = bound
        self._known: dict[int, int] = {}
        self._lock = threading.Lock()

    def of(self, tag: int) -> int:
        """MPI's tag. ValueError when there are more uncommon tags than MPI has numbers."""
        if 0 <= tag < self._half:
            return tag
        found = self._known.get(tag)
        if found is None:
            with self._lock:
                found = self._known[tag] = self._agree(tag)
        return found

    def _agree(self, tag: int) -> int:
        if self._store is None:
            number = len(self._known)
        else:
            key = f"tag/{tag}"
            mine = str(self._store.add("tags", 1))
            number = int(self._store.compare_set(key, "", mine))
        found = self._half + number
        if found > self._bound:
            raise ValueError(f"tag {tag}: this group has used {number} tags above {self._half}")
        return found
