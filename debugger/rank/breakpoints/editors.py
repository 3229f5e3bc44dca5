"""`--debugger debugpy`: an editor stops the rank, in place of a prompt.

While it is connected, the rank counts as paused: only the editor knows when it lets it run. Nobody
but this user can connect: see `owners_socket`. debugpy's own listener would let in whoever comes,
on the host, and run what he sends; so it is replaced, within debugpy, by ours.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from types import FrameType
from typing import Any

from ...record.limits import LOOK_EVERY_S
from ..limits import EDITOR_S
from .owners_socket import OwnersSocket

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
            threading.Thread(
                target=self._pause,
                args=(debugpy, announced, began),
                name="distdebug-editor",
                daemon=True,
            ).start()
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

    def _pause(
        self,
        debugpy: Any,
        announced: Callable[[str], AbstractContextManager[None]],
        began: threading.Event,
    ) -> None:
        """The rank is paused until the editor has gone."""
        try:
            with announced(self.address):
                began.set()
                while debugpy.is_client_connected():
                    time.sleep(LOOK_EVERY_S)
        finally:
            began.set()
            self._paused.release()


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
