"""torch's stores: when one waits for another rank, and which worlds meet in the same one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from .modules import dist
from .probe import within

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

    def blocks(store: Any, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        return watch(f"store.{name}", store, args[0] if args else next(iter(kwargs.values()), ""))

    within(store_class, name, blocks)


def on_new_stores(watch: Callable[[str, bool, int], AbstractContextManager[None]]) -> None:
    """Hear of each store that is made: of the file of a FileStore, "" for a TCPStore; whether this
    process hosts it; and for how many processes, itself among them, its host waits (0: for none).
    """

    def file_store(
        _: Any, file_name: Any = "", *__: Any, **___: Any
    ) -> AbstractContextManager[None]:
        return watch(str(file_name), False, 0)

    def tcp_store(_: Any, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        given = {**dict(zip(_TCP_ARGUMENTS, args, strict=False)), **kwargs}
        hosts = bool(given.get("is_master", False))
        size = given.get("world_size") if given.get("wait_for_workers", True) else None
        return watch("", hosts, size if hosts and isinstance(size, int) and size > 1 else 0)

    within(dist.FileStore, "__init__", file_store)
    within(dist.TCPStore, "__init__", tcp_store)


def store_address(store: Any) -> str:
    """Returns what tells the worlds that meet in different stores apart, in the same words on all
    ranks."""
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
    """Returns the address of a world that is this process's own. In containers on several nodes
    processes have the same numbers."""
    return f"{name}:{socket.gethostname()}:{os.getpid()}"
