"""The listener at the address that a finding is about, as this host's kernel has it."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING

from ...diagnosis.findings import Finding
from ...diagnosis.shared_findings import heard_at
from ...diagnosis.story import step
from ...hook.loading import dependency
from ...record.secret_words import masked

if TYPE_CHECKING:
    import psutil
else:
    psutil = dependency("psutil")

_ADDRESS = re.compile(r"(?:tcp://)?\[?(?P<host>[^\]/?]*)\]?:(?P<port>\d+)(?:[/?].*)?")
MOST_COMMAND = 80


@step("listener")
def with_listener(finding: Finding) -> Finding:
    """The finding with who listens at the address that it is about, if it is about one."""
    address = finding.data.get("address")
    found = who_listens(address) if isinstance(address, str) else None
    return finding if found is None else heard_at(finding, *found)


def who_listens(address: str) -> tuple[str, str] | None:
    """The address, and the process that listens there, `process 4711 (python train.py)`, "" for
    none; None where this host cannot tell."""
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
            return f"{host}:{port}", _process(row.pid)
    return f"{host}:{port}", ""


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
        command = " ".join(masked(psutil.Process(pid).cmdline()))
    except psutil.Error:
        command = ""
    text = command if len(command) <= MOST_COMMAND else f"{command[: MOST_COMMAND - 3]}..."
    return f"process {pid} ({text or 'unknown'})"
