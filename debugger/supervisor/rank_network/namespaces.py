"""Network namespaces with one interface each, whose other end this process holds. Needs root.

They have no names and leave nothing behind: a namespace is gone with the last process in it and the
last descriptor of it, its interface with the descriptor that carries it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...record.network import INTERFACE, NETMASK
from ...system.proc import namespace_path, setting

TUN = Path("/dev/net/tun")
MTU_BYTES = 65_000
"""One packet for nearly every message: the switch's cost is by the packet."""
_CLONE_NEWNET = 0x4000_0000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x4004_54CA, 1, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU = 0x8916, 0x891C, 0x8922


@dataclass(frozen=True, slots=True)
class Port:
    """A namespace. `tun`: a descriptor, not blocking, that gives and takes whole IPv4 packets of
    its interface. `namespace`: a descriptor of the namespace itself."""

    tun: int
    namespace: int


def make(addresses: Sequence[str]) -> list[Port]:
    """A namespace for each address, with loopback and an interface that has the address.

    This process must have one thread; it is where it was before, afterwards. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    own = namespace_path("self", "net")
    home = os.open(own, os.O_RDONLY)
    try:
        ports = []
        for address in addresses:
            _check(libc.unshare(_CLONE_NEWNET), "unshare")
            ports.append(Port(_interface(address), os.open(own, os.O_RDONLY)))
        return ports
    finally:
        _check(libc.setns(home, _CLONE_NEWNET), "setns")
        os.close(home)


def why_impossible() -> str:
    """Tells why there can be none, as far as that can be told without making one; "" where they
    can."""
    if os.geteuid() != 0:
        return "needs root"
    if not TUN.exists():
        return f"needs {TUN}, which this machine does not have (modprobe tun)"
    return ""


def _interface(address: str) -> int:
    tun = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    name = INTERFACE.encode()
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name, _IFF_TUN | _IFF_NO_PI))
    try:
        # It would send greetings of its own, and be a second family to choose from.
        setting(f"net.ipv6.conf.{INTERFACE}.disable_ipv6").write_text("1")
    except OSError:
        pass  # a kernel without IPv6
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, NETMASK)):
            packed = socket.inet_aton(text)
            fcntl.ioctl(any_socket, request, struct.pack("16sH2x4s8x", name, 2, packed))
        fcntl.ioctl(any_socket, _SIOCSIFMTU, struct.pack("16si12x", name, MTU_BYTES))
        for one in (b"lo", name):
            asked = struct.pack("16sH14x", one, 0)
            flags: int = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))[1]
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", one, flags | _IFF_UP))
    return tun


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
