"""Who listens at the address of a rendezvous, as this host's kernel tells."""

from __future__ import annotations

import ipaddress
import re
import socket

import psutil

_ADDRESS = re.compile(r"(?:tcp://)?\[?(?P<host>[^\]/?]*)\]?:(?P<port>\d+)(?:[/?].*)?")
MOST_COMMAND = 80


def who_listens(address: str) -> str | None:
    """`nobody listens at 127.0.0.1:29500`, or which process does; None where this host cannot
    tell."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return None
    host, port = found["host"], int(found["port"])
    here = _local_addresses(host)
    if not here:
        return None
    try:
        rows = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for row in rows:
        if row.status != psutil.CONN_LISTEN or not row.laddr or row.laddr.port != port:
            continue
        if row.laddr.ip in here or ipaddress.ip_address(row.laddr.ip).is_unspecified:
            return (
                f"{host}:{port} is held by {_process(row.pid)}: if that is no store, ranks wait "
                "for ever"
            )
    return f"nobody listens at {host}:{port}"


def _local_addresses(host: str) -> set[str]:
    """The addresses that the name stands for; none where one of them is not this host's."""
    try:
        wanted = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except OSError:
        return set()
    mine = {address.address for rows in psutil.net_if_addrs().values() for address in rows}
    return wanted if all(one in mine or one.startswith("127.") for one in wanted) else set()


def _process(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        command = ""
    text = command if len(command) <= MOST_COMMAND else f"{command[: MOST_COMMAND - 3]}..."
    return f"process {pid} ({text or 'unknown'})"
