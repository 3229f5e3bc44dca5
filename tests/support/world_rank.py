"""A rank of a world, from the fork to its end; see `worlds.py`."""

from __future__ import annotations

import os
import runpy
import socket
from collections.abc import Mapping
from typing import Any

from distdebug.rank import install
from distdebug.testing.channel import MessageChannel
from tests.support.in_fork import end, surroundings


def main(
    rank: int,
    _size: int,
    channel: MessageChannel,
    request: Mapping[str, Any],
    listener: socket.socket,
) -> None:
    """Be this rank; never returns."""
    channel.close()
    listener.close()
    logs = [f"{request['cwd']}/logs/{rank}.{stream}" for stream in ("out", "err")]
    surroundings({**request, "output": logs})
    os.environ.update(RANK=str(rank), DISTDEBUG_RANK_PID=str(os.getpid()))
    end(lambda: _work(request["script"]))


def _work(script: str) -> None:
    install.install()
    runpy.run_path(script, run_name="__main__")
