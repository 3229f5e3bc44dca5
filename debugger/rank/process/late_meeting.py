"""Meets the other nodes for a supervisor whose ranks have all ended before one of them did.

A short-lived process of that supervisor's, which itself imports no torch, and so cannot come to the
store in which the others have met: `RUN_DIR HOST PORT SECONDS`. Torch is imported only where
somebody listens there by then.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from ...record.limits import LOOK_EVERY_S
from ..limits import CONNECT_S, HEAD_COMES_S
from .meeting import NodesMeeting


def main() -> None:
    """The program."""
    directory, host, port, within_s = sys.argv[1:]
    if not _is_served(host, int(port), float(within_s)):
        return
    from ..torch_private.rendezvous import connected

    store = connected(host, int(port), CONNECT_S)
    NodesMeeting(Path(directory)).join(store, host, "distdebug", HEAD_COMES_S)


def _is_served(host: str, port: int, within_s: float) -> bool:
    """Whether somebody listens there, or does so soon; one try is made in any case."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((host, port), CONNECT_S).close()
            return True
        except OSError:
            if time.monotonic() > until_s:
                return False
            time.sleep(LOOK_EVERY_S)
