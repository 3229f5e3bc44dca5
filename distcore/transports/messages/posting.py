"""A send or receive on its way: what the one who waits for it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...errors import GroupFailed


class Posting:
    """A send or receive that was posted. `source` is the group rank that a receive got it from."""

    def __init__(
        self,
        sends: bool,
        peer: int | None,
        tag: int,
        data: memoryview,
        deadline: float,
        text: str,
        what: str,
    ) -> None:
        self.sends = sends
        self.peer = peer
        self.tag = tag
        self.data = data
        self.deadline = deadline
        self.text = text
        self.what = what
        self.source = -1 if peer is None or not sends else peer
        self.error: GroupFailed | None = None
        self.owner: object = None
        """The object that must live as long as `data` is used."""
        self._over = threading.Event()
        self._to_tell: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "pending"
        return f"<{self.what}: {state}>"

    @property
    def done(self) -> bool:
        """Whether it is over, well or badly."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over; False when `timeout_s` ran out before. Raises its error."""
        if not self._over.wait(timeout_s):
            return False
        if self.error is not None:
            raise self.error
        return True

    def when_over(self, tell: Callable[[], None]) -> None:
        """Call `tell()` when it is over: now, or on the thread that moves the messages. It must
        not raise."""
        self._to_tell.append(tell)
        if self._over.is_set():
            self._tell()

    def finish(self, error: GroupFailed | None = None) -> None:
        """Ends the posting, with an error or without."""
        if not self._over.is_set():
            self.error = error
            self._over.set()
            self._tell()

    def _tell(self) -> None:
        while self._to_tell:
            try:
                tell = self._to_tell.pop()
            except IndexError:
                return  # another thread does it
            tell()
