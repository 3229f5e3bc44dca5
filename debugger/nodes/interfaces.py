"""Which of this host's addresses leads to the others; a listener is bound to that one alone."""

from __future__ import annotations

import ipaddress
import socket

import psutil

LOOPBACK = "127.0.0.1"


class InterfaceError(ValueError):
    """There is no such interface, or it has no address."""


def address_towards(host: str, interface: str = "") -> str:
    """The address of this host from which `host` is reached: of that interface, where one is named.

    Where `host` is this host itself, that is the address that its name stands for; loopback where
    that is all there is. Raises InterfaceError for an interface that is not there.
    """
    if interface:
        return address_of(interface)
    found = _leading(host)
    if found is None:
        return LOOPBACK
    peer, own = found
    if own != peer:
        return own
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
        if ipaddress.ip_address(peer.partition("%")[0]).is_loopback:
            own = peer
        return peer, own
    return None
