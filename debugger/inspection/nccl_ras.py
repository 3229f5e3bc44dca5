"""Reads what NCCL's own threads tell of their communicators (RAS, NCCL 2.24 and newer; in JSON
since 2.28.7): which ranks have launched fewer collectives than the others, or do not answer.

It knows neither groups nor lines; processes are known by their pids. Its format is that of NCCL's
user guide, "RAS". A process of the job has to listen on the port, else nobody is asked.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..record.safe_text import clean

PORT = 28028
ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
_REQUEST = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nSTATUS\n"
_MOST_BYTES = 1 << 26
_SUCCESS, _IN_PROGRESS = 0, 7


@dataclass(frozen=True, slots=True)
class RasMember:
    """A rank of a communicator. `counts`: collectives launched, by NCCL's name of the operation.
    `silent`: "unresponsive" or "dead" where it does not answer."""

    rank: int
    host: str
    pid: int
    counts: Mapping[str, int]
    async_error: int = 0
    silent: str = ""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator and its members in their order."""

    name: str
    members: Sequence[RasMember]

    def behind(self) -> Mapping[int, Mapping[str, tuple[int, int]]]:
        """Returns the members that have launched fewer of an operation than another one, by their
        places here: their count and the highest, by operation."""
        told = [one for one in self.members if not one.silent]
        found: dict[int, dict[str, tuple[int, int]]] = {}
        for name in sorted({name for one in told for name in one.counts}):
            most = max(one.counts.get(name, 0) for one in told)
            for one in told:
                count = one.counts.get(name, 0)
                if count < most:
                    found.setdefault(one.rank, {})[name] = (count, most)
        return found


def asked(host: str, port: int, limit_s: float = 3.0) -> list[Communicator] | str:
    """The communicators of the job, or why they are not known."""
    try:
        with socket.create_connection((host, port), timeout=limit_s) as connection:
            connection.settimeout(limit_s)
            connection.sendall(_REQUEST)
            parts = []
            size = 0
            while part := connection.recv(1 << 16):
                parts.append(part)
                size += len(part)
                if size > _MOST_BYTES:
                    raise OSError(f"its answer is longer than {_MOST_BYTES} bytes")
            data = b"".join(parts)
    except OSError as error:
        return f"NCCL's RAS at {host}:{port} does not answer: {clean(str(error), 200)}"
    start = data.find(b"{")
    if start < 0:
        said = clean(data.decode("utf-8", "replace").strip().replace("\n", " "), 200)
        return f"NCCL's RAS at {host}:{port} has no JSON (NCCL 2.28.7 or newer has): {said}"
    try:
        return parsed(json.loads(data[start:]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return (
            f"the answer of NCCL's RAS at {host}:{port} cannot be read: {clean(repr(error), 200)}"
        )


def parsed(document: Mapping[str, Any]) -> list[Communicator]:
    """The communicators of a status document."""
    found = []
    for one in document["communicators"]:
        name = clean(str(one["hash"]), 40)
        members = [_member(rank) for rank in (*one.get("ranks", ()), *one.get("missing_ranks", ()))]
        found.append(Communicator(name, sorted(members, key=lambda member: member.rank)))
    return found


def _member(told: Mapping[str, Any]) -> RasMember:
    status = told.get("status") or {}
    silent = ""
    if "unresponsive" in status or "considered_dead" in status:
        silent = "dead" if status.get("considered_dead") else "unresponsive"
    error = int(status.get("async_error") or 0)
    return RasMember(
        rank=int(told["rank"]),
        host=clean(str(told.get("host", "")), 120),
        pid=int(told["pid"]),
        counts={
            clean(str(name), 40): int(count)
            for name, count in (told.get("collective_counts") or {}).items()
        },
        async_error=0 if error in (_SUCCESS, _IN_PROGRESS) else error,
        silent=silent,
    )
