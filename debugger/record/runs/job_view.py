"""The view that somebody on a node whose head is another one has of the run of all nodes.

The node's supervisor leaves word of its head in `head.json` of its run directory. Who looks holds a
shared lock on that file, and asks over the control socket for `watch`: as long as somebody holds
it, the supervisor has the head send it what is on record there, and keeps that in `job/`, a run
directory as any other. `view.json` in it says when it is whole, and that the head was lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..requests.control import ControlError, ask
from ..requests.supervision import is_live
from ..safe_files import open_regular
from ..wording import printable
from .run_directory import read_object

HEAD = "head.json"
FOLDER = "job"
STATE = "view.json"


def is_watched(directory: Path) -> bool:
    """Whether somebody looks at the job from this run directory of a node."""
    with left_alone(directory) as nobody:
        return not nobody


@contextlib.contextmanager
def left_alone(directory: Path) -> Iterator[bool]:
    """Whether nobody looks from there; if so, whoever comes waits until this is left."""
    try:
        descriptor = open_regular(directory / HEAD)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        nobody = True
    except OSError:
        nobody = False
    try:
        yield nobody
    finally:
        os.close(descriptor)


def node_of_view(directory: Path) -> Path | None:
    """The run directory of the node from which this one, of all nodes, is seen; None where it is
    none."""
    node = directory.parent
    return node if directory.name == FOLDER and (node / HEAD).exists() else None


def head_of(directory: Path) -> str:
    """The host of the head of this node."""
    return printable(str(read_object(directory / HEAD).get("host", "")), 120)


class JobView:
    """A view from the run directory of a node, which may have no head. `sentence`: what there is to
    say about what is seen; `lost`: why there is no head any more, "" while there is one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = -1
        self._asked_s = -1e9
        self._whole = False
        self.sentence = ""
        self.lost = ""

    @property
    def path(self) -> Path:
        """The run directory to read: of all nodes as soon as that is whole, else of this one."""
        self._look()
        return self._directory / FOLDER if self._whole else self._directory

    def wait(self, seconds: float) -> None:
        """Waits until all is there that the head has, or it is said why not; for so long at
        most."""
        until_s = time.monotonic() + seconds
        while self.has_head and not (self._whole or self.sentence):
            self._look()
            if time.monotonic() > until_s:
                self.sentence = (
                    f"the head ({head_of(self._directory)}) has not told all within "
                    f"{seconds:.0f} s: what follows is of this node alone"
                )
            time.sleep(0.02)

    @property
    def has_head(self) -> bool:
        """Whether this is a node with a head, and its run goes on."""
        return (self._directory / HEAD).exists() and is_live(self._directory)

    def _look(self) -> None:
        if self._lock < 0 and self.has_head:
            with contextlib.suppress(OSError):
                self._lock = open_regular(self._directory / HEAD)
                fcntl.flock(self._lock, fcntl.LOCK_SH)
        if self._lock < 0:
            return
        state = self._state()
        # One who has refused is asked again after two seconds.
        if not state and time.monotonic() - self._asked_s >= 2.0 and self.has_head:
            self._asked_s = time.monotonic()
            self.sentence = ""
            try:
                ask(self._directory, "watch", {}, timeout_s=5.0)
            except ControlError as error:
                self.sentence = f"only the ranks of this node are shown: {error}"
            state = self._state()
        if state:
            self._whole = self._whole or state.get("whole") is True
            self.lost = printable(str(state.get("lost", "")), 1000)
            if self.lost:
                what = "what it had told is shown" if self._whole else "this node alone is shown"
                self.sentence = f"{self.lost}: {what}"

    def _state(self) -> dict[str, Any]:
        return read_object(self._directory / FOLDER / STATE)

    def close(self) -> None:
        """Ends the view; the last one to go from a run that is over tidies up."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            if not is_live(self._directory):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(self._directory / FOLDER, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1
