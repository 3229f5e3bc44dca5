"""The store of a planned rank: torch's interface, kept by whoever runs the plan.

A rank that waits for a key gives its place to another. No time passes in a plan: a wait for a key
that nobody will set any more is over when nothing else can go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..torch_private import dist
from .board import TIMED_OUT
from .exchange import Planner

DEFAULT_TIMEOUT = timedelta(seconds=300)


class PlannedStore(dist.Store):  # type: ignore[misc]
    """`address` tells the stores of one plan apart."""

    def __init__(self, planner: Planner, address: str) -> None:
        super().__init__()
        self._planner = planner
        self.address = address
        self._timeout = DEFAULT_TIMEOUT
        planner.kept.append(self)  # C++ finds nothing of it once Python has dropped its object

    def __repr__(self) -> str:
        return f"<PlannedStore {self.address!r}>"

    def _key(self, key: Any) -> str:
        text = key.decode("latin-1") if isinstance(key, bytes) else str(key)
        return f"{self.address}/{text}"

    def _ask(
        self,
        words: Sequence[Any],
        values: Sequence[bytes] = (),
        timeout: timedelta | None = None,
    ) -> tuple[list[Any], list[bytes]]:
        limit_s = (timeout or self._timeout).total_seconds()
        answer, found = self._planner.ask(["store", *words], list(values))
        if answer[:1] == [TIMED_OUT]:
            raise dist.DistStoreError(
                f"wait timeout after {limit_s * 1000:.0f}ms, keys: {words[1:]}"
            )
        return answer, [one or b"" for one in found]

    def set(self, key: Any, value: Any) -> None:
        self._ask(["set", self._key(key)], [_bytes(value)])

    def get(self, key: Any) -> bytes:
        self._planner.tell(["limit", self._timeout.total_seconds()])
        return self._ask(["get", self._key(key)])[1][0]

    def add(self, key: Any, amount: int) -> int:
        return int(self._ask(["add", self._key(key), int(amount)])[0][0])

    def check(self, keys: Sequence[Any]) -> bool:
        return bool(self._ask(["check", *map(self._key, keys)])[0][0])

    def wait(self, keys: Sequence[Any], timeout: timedelta | None = None) -> None:
        limit_s = (timeout or self._timeout).total_seconds()
        self._planner.tell(["limit", limit_s])
        self._ask(["wait", *map(self._key, keys)], (), timeout)

    def compare_set(self, key: Any, expected: Any, desired: Any) -> bytes:
        values = [_bytes(expected), _bytes(desired)]
        return self._ask(["compare_set", self._key(key)], values)[1][0]

    def delete_key(self, key: Any) -> bool:
        return bool(self._ask(["delete", self._key(key)])[0][0])

    deleteKey = delete_key  # what C++ asks for, for a store around this one

    def num_keys(self) -> int:
        return int(self._ask(["count"])[0][0])

    getNumKeys = num_keys

    def append(self, key: Any, value: Any) -> None:
        self._ask(["append", self._key(key)], [_bytes(value)])

    def multi_get(self, keys: Sequence[Any]) -> list[bytes]:
        self._planner.tell(["limit", self._timeout.total_seconds()])
        return self._ask(["get", *map(self._key, keys)])[1]

    def multi_set(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def queue_push(self, key: Any, value: Any) -> None:
        self._ask(["push", self._key(key)], [_bytes(value)])

    def queue_pop(self, key: Any, block: bool = True) -> bytes:
        del block
        return self._ask(["pop", self._key(key)])[1][0]

    def queue_len(self, key: Any) -> int:
        return int(self._ask(["queue_length", self._key(key)])[0][0])

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def clone(self) -> PlannedStore:
        """Another object for the same keys."""
        twin = type(self)(self._planner, self.address)
        twin._timeout = self._timeout
        return twin


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value)
