"""One process with torch for all workers of xdist: each has a fork server that was forked from it,
and would import all that is preloaded once more otherwise: 4.4 s of a core."""

from __future__ import annotations

import os
import select
import socket
import tempfile
import threading
from pathlib import Path

from distdebug.testing.channel import MessageChannel
from distdebug.testing.limits import READY_S
from distdebug.testing.server import ForkServer, ServerError
from tests.support.torch_loaded import PRELOADED

ADDRESS = "TESTS_SHARED_SERVER"
"""The variable that tells the workers where it listens."""


class SharedServer:
    """In the process that starts the workers; it begins when the first of them needs it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._server = ForkServer(Path(self._folder.name) / "server.log", [PRELOADED])
        self._listener = socket.socket(socket.AF_UNIX)
        os.environ[ADDRESS] = str(Path(self._folder.name) / "socket")
        self._listener.bind(os.environ[ADDRESS])
        self._listener.listen()
        self._over = False
        self._thread = threading.Thread(target=self._begin, daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        with self._listener:
            select.select([self._listener], [], [])
            if not self._over:
                try:
                    self._server.start({"main": "tests.support.in_fork:share"}, [self._listener])
                except (OSError, ServerError) as error:  # each worker has its own then
                    print(f"no server for all workers: {error}", flush=True)

    def close(self) -> None:
        """End it, and all that was forked from it."""
        self._over = True
        if self._thread.is_alive():
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        self._folder.cleanup()


class _Remote:
    """What `subprocess.Popen` is for a server that another process has forked."""

    def __init__(self, connection: socket.socket) -> None:
        self._ended = select.poll()
        self._ended.register(connection, select.POLLRDHUP)

    def poll(self) -> int | None:
        return 0 if self._ended.poll(0) else None

    def wait(self, _limit_s: float) -> None:
        """Nothing: that is for its parent."""


def share(server: ForkServer) -> None:
    """Have this server forked from the shared one, if there is one."""
    address, begin = os.environ.get(ADDRESS), server._begin

    def begin_shared() -> int:
        connection = socket.socket(socket.AF_UNIX)
        server._channel = MessageChannel(connection)
        try:
            connection.connect(address)
            server._process = _Remote(connection)  # type: ignore[assignment]
            return int(server._await("ready", READY_S)["ready"])
        except (OSError, ServerError):
            connection.close()
            return begin()

    if address is not None:
        server._begin = begin_shared  # type: ignore[method-assign]
