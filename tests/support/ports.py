"""A port for a program that must be told one before it listens."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_LOWEST = 15_000


def unclaimed_port() -> int:
    """One at which nobody listens, and which the kernel gives to nobody who leaves the choice to
    it: whoever asks it for a free one and closes that again may find it taken a moment later.
    Workers of xdist beside each other have no port in common: one that was given one may not
    listen there yet."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    for _ in range(1000):
        port = random.randrange(_LOWEST + worker, int(given[0]), workers)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"no port from {_LOWEST} to {given[0]} is free")
