"""torch's stores: in which nodes and ranks meet, and when one waits for another rank.

torchrun's own process is seen here, too: its rendezvous, and its agent, which ends workers and
starts them anew.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...record.safe_text import endpoint, port_of
from ..limits import CONNECT_S, STORE_OPERATION_S
from .groups import CREATION, helper_arguments
from .probe import (
    STORE_ARGUMENTS,
    Wrapped,
    after,
    before,
    c10d,
    dist,
    instead,
    within,
    without_prefixes,
)


def on_store_waits(watch: Callable[[str, Any, Any], AbstractContextManager[None]]) -> None:
    """Hear of store operations that block until another rank sets a key."""
    kinds = (dist.Store, dist.TCPStore, dist.FileStore, dist.HashStore, dist.PrefixStore)
    for store_class in kinds:
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
        given = {**dict(zip(STORE_ARGUMENTS, args, strict=False)), **kwargs}
        hosts = bool(given.get("is_master", False))
        size = given.get("world_size") if given.get("wait_for_workers", True) else None
        return watch("", hosts, size if hosts and isinstance(size, int) and size > 1 else 0)

    within(dist.FileStore, "__init__", file_store)
    within(dist.TCPStore, "__init__", tcp_store)


def store_address(store: Any) -> str:
    """Returns what tells the worlds that meet in different stores apart, in the same words on all
    ranks."""
    store = without_prefixes(store)
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

    def rendezvous(original: Wrapped, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for found in original(*args, **kwargs):
            _rank_has(found[0], heard)
            yield found

    def creates_group(*args: Any, **kwargs: Any) -> None:
        store = helper_arguments(args, kwargs).get("store")
        if isinstance(store, dist.Store):
            with contextlib.suppress(Exception):
                _rank_has(store, heard)

    instead(c10d, "rendezvous", rendezvous)
    if CREATION.works:
        before(c10d, "_new_process_group_helper", creates_group)


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
    inner = without_prefixes(store)
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


def on_new_world(told: Callable[[Sequence[int]], None]) -> None:
    """Be told the processes of the workers that torchrun is about to end although none of them has
    failed: another node has come or gone, and the workers begin anew in a world of another size."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerState

    def restart(_agent: Any, workers: Any) -> None:
        if workers.state == WorkerState.HEALTHY:
            told([one.id for one in workers.workers if type(one.id) is int])

    before(SimpleElasticAgent, "_restart_workers", restart)
