"""torch's stores: when one waits for another rank, and which worlds meet in the same one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from .modules import Wrapped, dist
from .probe import patch

_TCP_ARGUMENTS = ("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers")


def on_store_waits(watch: Callable[[str, Any, Any], AbstractContextManager[None]]) -> None:
    """Hear of store operations that block until another rank sets a key."""
    for store_class in (
        dist.Store,
        dist.TCPStore,
        dist.FileStore,
        dist.HashStore,
        dist.PrefixStore,
    ):
        for name in ("get", "wait"):
            if name in vars(store_class):
                watch_store(store_class, name, watch)


def watch_store(
    store_class: Any, name: str, watch: Callable[[str, Any, Any], AbstractContextManager[None]]
) -> None:
    """Hear of this operation of one kind of store."""

    def make(original: Wrapped) -> Wrapped:
        def blocking(self: Any, *args: Any, **kwargs: Any) -> Any:
            keys = args[0] if args else next(iter(kwargs.values()), "")
            with watch(f"store.{name}", self, keys):
                return original(self, *args, **kwargs)

        return blocking

    patch(store_class, name, make)


def on_new_stores(watch: Callable[[str, bool, int], AbstractContextManager[None]]) -> None:
    """Hear of each store that is made: of the file of a FileStore, "" for a TCPStore; whether this
    process hosts it; and for how many processes, itself among them, its host waits (0: for none).
    """

    def file_store(original: Wrapped) -> Wrapped:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            path = args[0] if args else kwargs.get("file_name", "")
            with watch(str(path), False, 0):
                original(self, *args, **kwargs)

        return __init__

    def tcp_store(original: Wrapped) -> Wrapped:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            given = {**dict(zip(_TCP_ARGUMENTS, args, strict=False)), **kwargs}
            hosts = bool(given.get("is_master", False))
            size = given.get("world_size") if given.get("wait_for_workers", True) else None
            with watch("", hosts, size if hosts and isinstance(size, int) and size > 1 else 0):
                original(self, *args, **kwargs)

        return __init__

    patch(dist.FileStore, "__init__", file_store)
    patch(dist.TCPStore, "__init__", tcp_store)


def store_address(store: Any) -> str:
    """What tells the worlds that meet in different stores apart, in the same words on all ranks."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    name = type(store).__name__
    if isinstance(store, dist.TCPStore):
        return f"{name}:{store.port}"
    if isinstance(store, dist.FileStore):
        return f"{name}:{store.path}"
    if isinstance(store, dist.HashStore):
        return own_address(name)
    return name  # of the user's own kinds we know nothing


def own_address(name: str) -> str:
    """Of a world that is this process's own. In containers on several nodes processes have the same
    numbers."""
    return f"{name}:{socket.gethostname()}:{os.getpid()}"
