"""`--debugger debugpy`: an editor stops the rank, in place of a prompt.

While it is connected, the rank counts as paused: only the editor knows when it lets it run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

DEBUGPY = "debugpy"
MISSING = "debugpy is not installed; install it with: pip install debugpy"
_LOOK_EVERY_S = 0.2

_address = ""
_paused = threading.Lock()


def stop(
    announced: Callable[[str], AbstractContextManager[None]], look: Callable[[], None]
) -> None:
    """Wait for an editor, which then stops this thread. ImportError without debugpy.

    Within `announced(address)` the rank counts as paused; `look` raises when it must go on.
    """
    global _address
    debugpy: Any = import_module(DEBUGPY)
    if not _address:
        host, port = debugpy.listen(("127.0.0.1", 0))
        _address = f"{host}:{port}"
    if not debugpy.is_client_connected():
        with announced(_address):
            while not debugpy.is_client_connected():
                look()
                time.sleep(_LOOK_EVERY_S)
    began = threading.Event()
    if _paused.acquire(blocking=False):
        threading.Thread(
            target=_pause,
            args=(debugpy, announced, began),
            name="distdebug-editor",
            daemon=True,
        ).start()
        began.wait()
    debugpy.breakpoint()


def _pause(
    debugpy: Any, announced: Callable[[str], AbstractContextManager[None]], began: threading.Event
) -> None:
    """The rank is paused until the editor has gone."""
    try:
        with announced(_address):
            began.set()
            while debugpy.is_client_connected():
                time.sleep(_LOOK_EVERY_S)
    finally:
        began.set()
        _paused.release()
