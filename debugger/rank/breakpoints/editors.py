"""`--debugger debugpy`: an editor stops the rank, in place of a prompt.

While it is connected, the rank counts as paused: only the editor knows when it lets it run. Nobody
but this user can connect: see `OwnersSocket`. debugpy's own listener would let in whoever comes,
on the host, and run what he sends; so it is replaced, within debugpy, by ours.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from types import FrameType
from typing import Any

from ...record.limits import LOOK_EVERY_S
from ...system.sockets import owner_of_peer
from ..limits import EDITOR_S

DEBUGPY = "debugpy"
MISSING = "debugpy is not installed; install it with: pip install debugpy"
UNGUARDED = (
    "this release of debugpy cannot be kept from listening to every user of this host, and is not "
    "used; install debugpy 1.8, or leave out --debugger debugpy"
)


class Editors:
    """The listener for editors of this process, at one address."""

    def __init__(self) -> None:
        self.address = ""
        """Its address; "" before it listens."""
        self._paused = threading.Lock()

    def stop(
        self,
        announced: Callable[[str], AbstractContextManager[None]],
        look: Callable[[], None],
        frame: FrameType,
    ) -> None:
        """Wait for an editor, which then stops this thread in `frame`. ImportError without debugpy,
        and RuntimeError (UNGUARDED) with one whose listener cannot be replaced.

        Within `announced(address)` the rank counts as paused; `look` raises when it must go on.
        """
        debugpy: Any = import_module(DEBUGPY)
        if not self.address:
            self.address = _listen(debugpy)
        if not debugpy.is_client_connected():
            with announced(self.address):
                while not debugpy.is_client_connected():
                    look()
                    time.sleep(LOOK_EVERY_S)
        began = threading.Event()
        if self._paused.acquire(blocking=False):

            def pause() -> None:  # the rank is paused until the editor has gone
                try:
                    with announced(self.address):
                        began.set()
                        while debugpy.is_client_connected():
                            time.sleep(LOOK_EVERY_S)
                finally:
                    began.set()
                    self._paused.release()

            threading.Thread(target=pause, name="distdebug-editor", daemon=True).start()
            began.wait()
        # `debugpy.breakpoint()` would stop here, in our code.
        pydevd: Any = sys.modules["pydevd"]
        pydevd.settrace(
            suspend=True,
            trace_only_current_thread=True,
            patch_multiprocessing=False,
            notify_stdin=False,
            stop_at_frame=frame,
        )


def _listen(debugpy: Any) -> str:
    """The address to which an editor of this user connects. Raises RuntimeError."""
    try:
        import_module(f"{DEBUGPY}.server.api")  # which finds pydevd: it is not on the path
    except ImportError as error:
        raise RuntimeError(UNGUARDED) from error
    pydevd: Any = sys.modules.get("pydevd")
    if not hasattr(pydevd, "create_server_socket"):
        raise RuntimeError(UNGUARDED)
    listener = OwnersSocket.bound()
    address = "{}:{}".format(*listener.getsockname())
    kept = pydevd.create_server_socket
    asked = threading.Event()

    def ours(host: str, port: int) -> OwnersSocket:  # noqa: ARG001 - as pydevd calls it
        asked.set()
        return listener

    pydevd.create_server_socket = ours
    try:
        # Its adapter in a process of its own would listen by itself.
        debugpy.listen(("127.0.0.1", 0), in_process_debug_adapter=True)
        if not asked.wait(EDITOR_S):
            raise RuntimeError(UNGUARDED)
    except (RuntimeError, TypeError) as error:
        listener.close()
        raise RuntimeError(UNGUARDED) from error
    finally:
        pydevd.create_server_socket = kept
    return address


PROTOCOL = b"Content-Length:"
"""The beginning of every message of the Debug Adapter Protocol."""


class OwnersSocket(socket.socket):
    """A listener at 127.0.0.1; `accept` returns connections of this process's user alone.

    Editors connect by TCP, where everybody on the host can. The kernel knows whose each socket is:
    for a connection within this host it shows both of its ends. Whoever else comes is shut out
    before a byte of his is read. So is a web page that makes the user's browser connect: what comes
    must begin as the Debug Adapter Protocol does, which no HTTP request can.
    """

    @classmethod
    def bound(cls) -> OwnersSocket:
        """At a port that the system chooses. Raises OSError."""
        made = cls(socket.AF_INET, socket.SOCK_STREAM)
        try:
            made.bind(("127.0.0.1", 0))
        except BaseException:
            made.close()
            raise
        return made

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            connection, address = super().accept()
            try:
                if owner_of_peer(connection) == os.geteuid() and _speaks_the_protocol(connection):
                    return connection, address
            except OSError:
                pass  # it has gone again
            connection.close()


def _speaks_the_protocol(connection: socket.socket) -> bool:
    connection.settimeout(EDITOR_S)
    try:
        begun = connection.recv(len(PROTOCOL), socket.MSG_PEEK | socket.MSG_WAITALL)
    finally:
        connection.settimeout(None)
    return begun == PROTOCOL
