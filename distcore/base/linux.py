"""Reads what Linux says of this process and its host. (In a rank, psutil may be a module of the
program's.)"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from dataclasses import dataclass

_LINK_LOCAL = "20"
"""The scope of a link-local address, as /proc/net/if_inet6 writes it."""


@dataclass(frozen=True)
class Host:
    """The host of a process. Loopback and abstract UNIX sockets reach from one process to another
    where their hosts are equal.

    Containers share the machine's boot id, but have a network namespace of their own.
    """

    boot: str
    network: int


def this_host() -> Host:
    """This process's host; where the system does not tell, a value that equals no other's name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read(64).strip()
        return Host(boot, os.stat("/proc/self/ns/net").st_ino)
    except (OSError, UnicodeDecodeError):
        return Host(f"name {ascii(socket.gethostname())[1:-1]}"[:64], 0)


def ipv6_address(interface: str) -> str | None:
    """Returns an interface's IPv6 address. A link-local address means nothing without the peer's
    own interface name, so none is taken."""
    try:
        with open("/proc/net/if_inet6", encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    for digits, _, _, scope, _, name in rows:
        if name == interface and scope != _LINK_LOCAL:
            return str(ipaddress.IPv6Address(bytes.fromhex(digits)))
    return None


def mapped_files(prefix: str) -> list[str]:
    """The paths of the files that this process has mapped and whose names begin so."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.rsplit(" ", 1)[-1].strip() for line in maps}
    except OSError:
        return []
    return sorted(path for path in paths if os.path.basename(path).startswith(prefix))


class _Range(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t))


_SOME, _ONE = ctypes.c_ulong, ctypes.POINTER(_Range)
_process_vm_readv = ctypes.CDLL(None).process_vm_readv
_process_vm_readv.argtypes = (ctypes.c_int, _ONE, _SOME, _ONE, _SOME, _SOME)
_process_vm_readv.restype = ctypes.c_ssize_t


def address_of(view: memoryview) -> int:
    """Returns where a view of writable bytes lies, of which there is one at least."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))


def read_memory(process: int, address: int, into: memoryview) -> bool:
    """Copies what lies at this address of a process; whether that is allowed, and all of it is that
    process's. Other threads run meanwhile."""
    here, done = address_of(into), 0
    while done < len(into):
        mine, theirs = (_Range(one + done, len(into) - done) for one in (here, address))
        count = _process_vm_readv(process, mine, 1, theirs, 1, 0)
        if count <= 0:
            return False
        done += count
    return True
