"""Keeps torch's own listeners off the network, in a run whose ranks are all on this host.

A `TCPStore` serves every interface of its host, whatever address it was given, to anybody, and gloo
listens where the host's name leads. Where `distdebug run` starts all ranks on this host, a store
with a loopback address listens at that address alone, and so does gloo in groups that meet in such
a store. No variable is set for it that the program could see (GLOO_SOCKET_IFNAME, say); where the
user has set that one, it holds.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

from .probe import (
    STORE_ARGUMENTS,
    WatchedPart,
    Wrapped,
    c10d,
    dist,
    instead,
    private,
    without_prefixes,
)

ONE_HOST = "DISTDEBUG_ONE_HOST"
"""In the environment of a run whose processes are all on this host."""
GLOO_INTERFACES = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"
GLOO = WatchedPart(
    "loopback",
    "gloo listens where the host's name leads, as without distdebug",
    private("ProcessGroupGloo._Options._devices"),
    private("ProcessGroupGloo._Options._threads"),
    private("ProcessGroupGloo._Options._timeout"),
    private("ProcessGroupGloo.create_device"),
)


def keep_to_loopback() -> None:
    """Keeps this process to loopback, if its run is on one host. Called twice it changes
    nothing."""
    if os.environ.get(ONE_HOST) != "1":
        return
    fronts = [(getattr(dist, "TCPStore", None), _store)]
    if GLOO.works:
        fronts.append((getattr(c10d, "ProcessGroupGloo", None), _gloo))
    for kind, front in fronts:
        if kind is not None and not hasattr(kind.__init__, "__wrapped__"):
            instead(kind, "__init__", front)


def loopback_address(host: str) -> str | None:
    """The address at which a store listens whose address is `host`; None where that is no loopback
    address."""
    if host.lower() == "localhost":
        return LOOPBACK
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        return None


def _store(original: Wrapped, self: Any, *args: Any, **kwargs: Any) -> Any:
    given = {**dict(zip(STORE_ARGUMENTS, args, strict=False)), **kwargs}
    serves = given.get("is_master") and given.get("master_listen_fd") is None
    # The other kind of server takes no descriptor.
    address = loopback_address(str(given.get("host_name"))) if serves else None
    if address is None or not given.get("use_libuv", True):
        return original(self, *args, **kwargs)
    listener = _listener(address, given.get("port"))
    if listener is None:
        return original(self, *args, **kwargs)  # which says why, or shares its server
    # The store closes it.
    return original(self, **{**given, "master_listen_fd": listener.detach()})


def _listener(address: str, port: Any) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(socket.SOMAXCONN)
    except (OSError, OverflowError, TypeError):
        listener.close()
        return None
    return listener


def _gloo(original: Wrapped, self: Any, *args: Any, **kwargs: Any) -> Any:
    given = {**dict(zip(("store", "rank", "size", "timeout"), args, strict=False)), **kwargs}
    options = None
    plain = given.keys() <= {"store", "rank", "size", "timeout"} and not isinstance(
        given.get("timeout"), c10d.ProcessGroupGloo._Options
    )
    if plain and not os.environ.get(GLOO_INTERFACES) and _is_here(given.get("store")):
        options = _on_loopback(given)
    if options is None:
        return original(self, *args, **kwargs)
    return original(self, given["store"], given["rank"], given["size"], options)


def _is_here(store: Any) -> bool:
    """Whether all who meet in this store are on this host, as far as its address says."""
    store = without_prefixes(store)
    if isinstance(store, dist.TCPStore):
        return loopback_address(str(store.host)) is not None
    return isinstance(store, dist.HashStore)


def _on_loopback(given: dict[str, Any]) -> Any:
    """Returns options as torch's own, but for the device; None where this torch's are others."""
    try:
        options: Any = c10d.ProcessGroupGloo._Options()
        options._devices = [c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        options._threads = 2 * len(options._devices)
        if "timeout" in given:
            options._timeout = given["timeout"]
    except (AttributeError, RuntimeError, TypeError):
        return None
    return options
