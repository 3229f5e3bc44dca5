"""The stores in which nodes and ranks meet: torchrun's, and those that ranks initialise with."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from ...record.safe_text import endpoint, port_of
from ..limits import CONNECT_S, STORE_OPERATION_S
from .groups import helper_arguments, on_group_creation
from .modules import Wrapped, c10d, dist
from .probe import after, before, patch

StoreHeard = Callable[[Callable[[], Any], str, str], None]
"""Told of a store: how to open a connection of one's own to it, the host that serves it, and a
prefix for keys, which tells jobs that share a store apart."""


def on_launcher_store(heard: StoreHeard, begins: Callable[[str], None]) -> None:
    """In torchrun's own process: hear of the store in which its nodes meet, as soon as there is
    one. Of other rendezvous than c10d and static, that is when all nodes have come. `begins` is
    told the host of the store before anything is tried there."""
    from torch.distributed.elastic.rendezvous import registry

    before(registry, "get_rendezvous_handler", lambda params: begins(_host_of(params)))
    after(registry, "get_rendezvous_handler", lambda made, params: _watch(made, params, heard))


def _watch(handler: Any, params: Any, heard: StoreHeard) -> None:
    prefix = f"distdebug/{params.run_id}"
    port, host = endpoint(str(params.endpoint))[1], _host_of(params)
    if params.backend == "static" and port is not None:
        heard(lambda: connected(host, port), host, prefix)
        return
    store = getattr(handler, "_store", None)
    if isinstance(store, dist.Store):
        heard(lambda: _own(store), host, prefix)
        return
    original = handler.next_rendezvous

    def next_rendezvous() -> Any:
        info = original()
        handler.next_rendezvous = original
        heard(lambda: _own(info.store), host, prefix)
        return info

    handler.next_rendezvous = next_rendezvous


def _host_of(params: Any) -> str:
    """The host in `host`, `host:29400` or `[fd00::1]:29400`, as torch reads it; "" where the nodes
    meet in a file."""
    endpoint = str(params.endpoint or "").strip()
    store_type = str(params.get("store_type", "tcp")).strip().lower()
    if params.backend == "c10d" and store_type == "file":
        return ""
    if endpoint.startswith("[") and endpoint.endswith("]"):
        return endpoint[1:-1]
    host, colon, _port = endpoint.rpartition(":")
    return (host if colon else endpoint).strip("[]") or "localhost"


def on_rank_store(heard: StoreHeard) -> None:
    """In a rank: hear of the store of its groups, before one is made with it. torch's own is heard
    of where it comes from; one that the program has made, or a backend of its own accord as MPI's
    does, at the latest where every group is made."""

    def make(original: Wrapped) -> Wrapped:
        def rendezvous(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for found in original(*args, **kwargs):
                _rank_has(found[0], heard)
                yield found

        return rendezvous

    def with_given(original: Wrapped) -> Wrapped:
        def create_group(*args: Any, **kwargs: Any) -> Any:
            store = helper_arguments(args, kwargs).get("store")
            if isinstance(store, dist.Store):
                with contextlib.suppress(Exception):
                    _rank_has(store, heard)
            return original(*args, **kwargs)

        return create_group

    patch(c10d, "rendezvous", make)
    on_group_creation(with_given)


def store_of_environment(wanted: Callable[[], bool]) -> tuple[Callable[[], Any], str] | None:
    """In a rank that a launcher has told where all meet (MASTER_ADDR, MASTER_PORT): how to come to
    that store before this rank does so itself, if ever, and its host. None without these.

    It may be served only later, or never: it is tried as long as `wanted` says so, which waits
    before it does, and then there is None. Nothing of torch's runs before somebody listens there.
    """
    told = _told_place()
    if told is None:
        return None
    host, port = told

    def opened() -> Any:
        while wanted():
            with contextlib.suppress(Exception):
                socket.create_connection((host, port), CONNECT_S).close()
                return connected(host, port, 0.0)
        return None

    return opened, host


def launchers_store() -> tuple[Callable[[Callable[[], Any]], Any], str] | None:
    """In a rank whose launcher serves the store in which all meet, as torchrun does: how to come to
    it, or, where it is not reached, to another one that is given; and its host. None where a rank
    will serve it."""
    told = _told_place()
    if told is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return None
    host, port = told

    def opened(other: Callable[[], Any]) -> Any:
        try:
            return connected(host, port, CONNECT_S)
        except Exception:
            return other()

    return opened, host


def _told_place() -> tuple[str, int] | None:
    """The address that a launcher has told of the store in which all ranks meet."""
    host, port = os.environ.get("MASTER_ADDR", ""), port_of(os.environ.get("MASTER_PORT"))
    return (host, port) if host and port is not None else None


def _rank_has(store: Any, heard: StoreHeard) -> None:
    inner = store
    while isinstance(inner, dist.PrefixStore):
        inner = inner.underlying_store
    if isinstance(inner, dist.HashStore):
        return  # of this process alone
    host = str(inner.host) if isinstance(inner, dist.TCPStore) else ""
    heard(lambda: _own(inner), host, "distdebug")


def _own(store: Any) -> Any:
    """A connection of one's own: that of the program is locked while it waits for a key."""
    own = store.clone()
    own.set_timeout(datetime.timedelta(seconds=STORE_OPERATION_S))
    return own


def connected(host: str, port: int, until_s: float = 600.0) -> Any:
    """A connection to a store that another node may still have to serve, for so long. Raises what
    torch does where that takes longer."""
    end_s = time.monotonic() + until_s
    while True:
        try:
            store = dist.TCPStore(
                host,
                port,
                None,
                False,
                timeout=datetime.timedelta(seconds=CONNECT_S),
                wait_for_workers=False,
            )
        except Exception:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)
            continue
        store.set_timeout(datetime.timedelta(seconds=STORE_OPERATION_S))
        return store
