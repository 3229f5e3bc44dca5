"""A rank of a crew, from the fork to its end; see `crew.py`."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from distdebug.testing.channel import MessageChannel
from tests.support.in_fork import end, surroundings


def main(
    rank: int,
    size: int,
    channel: MessageChannel,
    request: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Be this rank; never returns."""
    listener.close()
    surroundings(request)
    with socket.socket(fileno=os.dup(channel.fileno())) as commands:
        channel.close()
        end(lambda: _work(rank, size, commands, request["worker"]))


def _work(rank: int, size: int, commands: socket.socket, worker: str) -> None:
    sys.argv = [worker]
    spec = importlib.util.spec_from_file_location("worker", worker)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(rank, size, commands)
