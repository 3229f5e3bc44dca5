"""The address of this machine that the other ranks reach, and which ranks share a machine.

The rule, for the TCP listener of one rank:

1. `DISTCORE_SOCKET_IFNAME` (names of interfaces, comma separated; the first that has an address)
   decides, IPv4 before IPv6.
2. All ranks on one host: loopback, whatever the master's address is.
3. Several hosts: the interface that reaches the store's host (a connected UDP socket tells which;
   no packet is sent). Where that is loopback, as on a master whose own name resolves to 127.0.1.1,
   the interface that reaches a rank of another host.
4. A store without a host (`FileStore` on a shared file system): what this host's name resolves to,
   unless that is loopback.
5. Otherwise `RendezvousError`: listening on an address that no peer reaches would end in a timeout.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

from ..base.linux import Host, ipv6_address
from ..errors import RendezvousError
from ..torch_private import dist

INTERFACE_VARIABLE = "DISTCORE_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
"""Linux's request for the address in a `struct ifreq`, which begins with the interface's name."""


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def store_host(store: Any) -> str | None:
    """The name or address of the host that serves the store; None where there is none."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        return str(store.host)
    if isinstance(store, dist.FileStore | dist.HashStore):
        return None
    return os.environ.get("MASTER_ADDR") or None


def address_towards(host: str) -> str | None:
    """This machine's address on the way to `host`; None when there is no way."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                own = str(probe.getsockname()[0])
                # IPv4 is written as such, also where a dual-stack socket reports it.
                mapped = getattr(ipaddress.ip_address(own.partition("%")[0]), "ipv4_mapped", None)
                return own if mapped is None else str(mapped)
        except OSError:
            continue
    return None


def interface_address() -> str | None:
    """The address of the interface that DISTCORE_SOCKET_IFNAME names; None when it is not set.

    Raises ValueError when none of the named interfaces has an address.
    """
    wanted = os.environ.get(INTERFACE_VARIABLE, "")
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        return None
    for name in names:
        address = _ipv4_of(name) or ipv6_address(name)
        if address is not None:
            return address
    having = ", ".join(sorted(name for _, name in socket.if_nameindex()))
    raise ValueError(
        f"{INTERFACE_VARIABLE}={wanted!a} names no interface with an address; "
        f"this machine has {having}"
    )


def _ipv4_of(interface: str) -> str | None:
    """The first IPv4 address of the interface; None where it has none, or there is no such one."""
    request = struct.pack("16s24x", os.fsencode(interface)[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])


def candidate_address(store: Any) -> str | None:
    """The address to tell the other ranks first: rules 1 and 3, where no other rank is needed."""
    chosen = interface_address()
    if chosen is not None:
        return chosen
    host = store_host(store)
    return None if host is None else address_towards(host)


def listening_address(
    rank: int, hosts: Sequence[Host], candidates: Sequence[str | None]
) -> str | None:
    """Returns the address on which group rank `rank` listens; None: on loopback. `hosts` and
    `candidates` are by group rank.

    Raises RendezvousError when the ranks are on several hosts and no address was found that the
    others reach.
    """
    chosen = interface_address()
    elsewhere = [other for other, host in enumerate(hosts) if host != hosts[rank]]
    if not elsewhere:
        return chosen
    if chosen is not None:
        if not is_loopback(chosen):
            return chosen
        raise RendezvousError(
            f"{INTERFACE_VARIABLE} chooses {chosen}, which is loopback, but "
            f"group rank {elsewhere[0]} is on another host"
        )
    candidate = candidates[rank]
    if candidate is not None and not is_loopback(candidate):
        return candidate
    tries = [there for other in elsewhere if (there := candidates[other]) is not None]
    tries = [there for there in tries if not is_loopback(there)] or [socket.gethostname()]
    for there in tries:
        address = address_towards(there)
        if address is not None and not is_loopback(address):
            return address
    raise RendezvousError(
        f"group rank {elsewhere[0]} is on another host, and this one knows no address of its own "
        f"but loopback; set {INTERFACE_VARIABLE} to the interface between the hosts"
    )
