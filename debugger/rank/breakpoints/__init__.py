"""Breakpoints: where a rank stops, and the prompt through which one talks to it.

Here is what waits for the first one, and loads the rest then: the prompt, its socket and all that
stops a rank would be loaded in each rank of each run, most of which stop nowhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from os import getpid
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...record.requests import supervision
from ..log.rank_log import report_own_fault
from ..process.main_thread import MainThread
from ..record.recorder import GroupRecord, Recorder
from ..torch_private.calls import on_breakpoint

if TYPE_CHECKING:
    from .stops import Breakpoints

POST_MORTEM = "DISTDEBUG_PDB"
BREAK = "DISTDEBUG_BREAK"
"""The places, one a line, with absolute names of files."""
Look = Callable[[], None]
LookOnce = Callable[[Look | None], None]


class AwaitedBreakpoints:
    """See `Breakpoints`, which is made at the first need."""

    def __init__(self, recorder: Recorder, directory: Path, main_thread: MainThread) -> None:
        self._recorder = recorder
        self._directory = directory
        self._main_thread = main_thread
        self._owner = getpid()
        self._blind = False
        self._made: dict[str, Breakpoints] = {}
        self._look_once: LookOnce = lambda _look: None

    def _begun(self) -> Breakpoints:
        if not self._made:
            from .stops import Breakpoints

            parts = (self._recorder, self._directory, self._main_thread)
            made = Breakpoints(*parts, self._owner, self._look_once)
            # No lock, which a fork might find held: the heartbeat may need them at this moment.
            if self._made.setdefault("", made) is made:
                made.observe()
        return self._made[""]

    def observe(self, look_once: LookOnce) -> None:
        """From now on this process stops at breakpoints. `look_once(look)` has each call of a group
        looked at, until it is called with None."""
        self._look_once = look_once
        if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
            sys.breakpointhook = self._on_breakpoint
        on_breakpoint(lambda: _TorchsPdb(self.stop_or_other))
        if os.environ.get(BREAK):
            self._begun()

    def adopt(self) -> None:
        """This process was forked, and is a rank of its own now."""
        self._owner = getpid()
        for made in self._made.values():
            made.adopt()

    def stop_or_other(self, frame: FrameType, *args: Any, **kwargs: Any) -> Any:
        """Stop here, unless PYTHONBREAKPOINT names another debugger, which gets the arguments, or
        none (0). Must be the caller's last act."""
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **kwargs)
        return self._begun().stop(frame)

    def _on_breakpoint(self, *args: Any, **kwargs: Any) -> Any:
        return self.stop_or_other(sys._getframe(1), *args, **kwargs)

    def post_mortem(self, error: BaseException, record: Callable[[], None]) -> None:
        """See `Breakpoints.post_mortem`."""
        self._begun().post_mortem(error, record)

    def before_calls(self, record: GroupRecord) -> Callable[..., None] | None:
        """See `Breakpoints.before_calls`."""
        return self._begun().before_calls(record) if os.environ.get(BREAK) else None

    def look(self) -> None:
        """Called with every heartbeat: somebody may ask the process to stop."""
        if self._blind:
            return
        try:
            if self._made or supervision.is_asked(self._directory, getpid()):
                self._begun().on_demand.look()
        except Exception as error:
            self._blind = True
            report_own_fault("stopping on demand", error)


class _TorchsPdb:
    """The object that `torch.distributed.breakpoint` takes for its pdb."""

    def __init__(self, stop: Callable[[FrameType], None]) -> None:
        self._stop = stop

    def message(self, _text: str) -> None:
        """Torch's advice to type `up` does not hold: the prompt is at the right frame."""

    def set_trace(self) -> None:
        frame = sys._getframe(1)
        self._stop(frame.f_back or frame)
