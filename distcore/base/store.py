"""The part of torch's store that distcore uses, as a type: torch exports its class without saying
so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class KeyValueStore(Protocol):
    """`torch.distributed.Store` and everything derived from it."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...

    def delete_key(self, key: str, /) -> bool: ...

    def has_extended_api(self) -> bool: ...

    def multi_get(self, keys: list[str], /) -> Sequence[bytes]: ...

    def multi_set(self, keys: list[str], values: list[str], /) -> None: ...
