"""Finds which of this host's addresses leads to the others; a listener is bound to that one
alone."""

from __future__ import annotations

import ipaddress
import socket

import psutil

LOOPBACK = "127.0.0.1"
_EVERYWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that are nobody's (RFC 5737, RFC 3849): the way there is the way out."""
_WITHIN_THE_HOST = ("docker", "veth", "virbr", "cni", "br-")
"""Prefixes of interfaces that lead to containers of this host."""


class InterfaceError(ValueError):
    """There is no such interface, or it has no address."""


def address_towards(host: str, interface: str = "") -> str:
    """The address of this host from which `host` is reached: of that interface, where one is named.

    Where `host` is this host itself, that is the address that its name stands for. Debian has a
    host's own name stand for 127.0.1.1 there, and there alone: then it is the address by which this
    host is reached from outside, and loopback where it has no other. Raises InterfaceError for an
    interface that is not there.
    """
    if interface:
        return address_of(interface)
    found = _leading(host)
    if found is None:
        return LOOPBACK
    peer, own = found
    if own != peer:
        return own
    if _is_loopback(peer) and not names_loopback(host):
        return _outward() or peer
    return peer  # it is here


def address_of(interface: str) -> str:
    """The first address of the interface with this name, or the address itself if it is one of
    this host. Raises InterfaceError."""
    known = psutil.net_if_addrs()
    families = (socket.AF_INET, socket.AF_INET6)
    for family in families:
        for row in known.get(interface, ()):
            if row.family == family and "%" not in row.address:
                return str(row.address)
    addresses = {str(row.address) for rows in known.values() for row in rows}
    if interface in addresses:
        return interface
    if interface in known:
        raise InterfaceError(f"--interface {interface}: it has no address")
    names = ", ".join(sorted(known)) or "none"
    raise InterfaceError(
        f"--interface {interface}: this host has no such interface (it has {names})"
    )


def address_of_host(host: str) -> str:
    """The address that stands for this name here, "" where there is none, or no way there."""
    found = _leading(host)
    return "" if found is None else found[0]


def names_loopback(host: str) -> bool:
    """Whether it stands for this host on every host."""
    name = host.lower()
    return _is_loopback(name) or name.startswith(("localhost", "ip6-l")) or ".localhost" in name


def is_here(host: str) -> bool:
    """Whether the name or address is one of this host's own."""
    found = _leading(host)
    return found is not None and found[0] == found[1]


def _leading(host: str) -> tuple[str, str] | None:
    """The address of `host`, and the one of ours that leads there; None where nothing does."""
    try:
        rows = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    rows.sort(key=lambda row: row[0] != socket.AF_INET)
    for family, kind, protocol, _, address in rows:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # of a datagram socket: nothing is sent
                own = str(probe.getsockname()[0])
        except OSError:
            continue
        peer = str(address[0])
        if _is_loopback(peer):
            own = peer
        return peer, own
    return None


def _outward() -> str:
    """The address of this host on the way out; where there is none, as in a network of its own, the
    first that is not loopback; "" where there is no other."""
    for family, nobody in _EVERYWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((nobody, 9))
                own = str(probe.getsockname()[0])
        except OSError:
            continue
        if not _is_loopback(own):
            return own
    state = psutil.net_if_stats()
    known = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for name, rows in known.items():
            if name.startswith(_WITHIN_THE_HOST) or name not in state or not state[name].isup:
                continue
            for row in rows:
                address = str(row.address)
                if row.family == family and "%" not in address and not _is_loopback(address):
                    return address
    return ""


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False  # it is a name
