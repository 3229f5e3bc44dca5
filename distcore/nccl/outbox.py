"""The messages that this rank sent outside of batches, for receivers from any source: see
`inbox`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import Any

from ..limits import ASK_EVERY_S


@dataclass(frozen=True)
class Path:
    """The way of a message: from whom to whom, as ranks of the group, and with which tag."""

    source: int
    target: int
    tag: int


class Outbox:
    """The paths on which this rank has sent; its watchdog calls `tell`."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._sent: Counter[Path] = Counter()
        self._told: Counter[Path] = Counter()
        self._asked = False
        self._looked_s = 0.0
        self._lock = Lock()

    def sent(self, path: Path) -> None:
        with self._lock:
            self._sent[path] += 1

    def tell(self, now_s: float) -> None:
        """Write down what is new, if anybody wants to know."""
        if not self._sent:
            return
        if not self._asked:
            if now_s - self._looked_s < ASK_EVERY_S:
                return
            self._looked_s = now_s
            self._asked = bool(self._store.check([f"{self._prefix}/any"]))
            if not self._asked:
                return
        with self._lock:
            new = [(path, n) for path, n in self._sent.items() if n != self._told[path]]
        for path, count in new:
            self._store.set(sent_key(self._prefix, path), str(count))
            self._told[path] = count


def sent_key(prefix: str, path: Path) -> str:
    return f"{prefix}/sent/{path.source}/{path.target}/{path.tag}"
