"""Reads what Linux tells of this process and its machine. Raises OSError where it does not."""

from __future__ import annotations

import os


def boot_id() -> str:
    """The name of the machine since it was booted. Raises UnicodeDecodeError, too."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read(64).strip()


def network_namespace() -> int:
    """The number of the network namespace that this process is in."""
    return os.stat("/proc/self/ns/net").st_ino


def ipv6_addresses() -> list[list[str]]:
    """The rows of the table of addresses: digits, index, length of prefix, scope, flags, name."""
    with open("/proc/net/if_inet6", encoding="ascii", errors="replace") as file:
        return [line.split() for line in file]


def mapped_files() -> set[str]:
    """The paths of the files that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return {line.rsplit(" ", 1)[-1].strip() for line in maps}


def name_this_thread(name: bytes) -> None:
    """Gives the calling thread a name in the kernel, of 15 bytes at most."""
    with open("/proc/thread-self/comm", "wb", buffering=0) as comm:
        comm.write(name)
