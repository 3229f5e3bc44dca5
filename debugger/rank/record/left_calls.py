"""Puts on record that an exception leaves a call: most are caught, and what a rank does after that
may be what goes wrong."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from typing import TYPE_CHECKING

from ...errors.in_ranks import FindingRaised
from ...record.notes import LeftCallNote
from .exception_text import name_of, titled

if TYPE_CHECKING:
    from .recorder import Recorder

_MOST = 256
_ORDINARY = (StopIteration, StopAsyncIteration, FindingRaised)


class LeftCalls:
    """The calls of this process that exceptions have left."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def __call__(self, function: str, error: BaseException | None) -> None:
        """The exception leaves this function of torch's, which this thread has called. One that
        leaves a line again and again, as in a loop that tries anew, is noted ever more seldom."""
        with contextlib.suppress(Exception):
            if not isinstance(error, Exception) or isinstance(error, _ORDINARY):
                return
            recorder = self._recorder
            key = (function, name_of(error), recorder.site(sys._getframe(1)))
            self._counts[key] += 1
            seldom = self._counts[key] & (self._counts[key] - 1) or len(self._counts) > _MOST
            if not (seldom or recorder.writer.heap_half_full or recorder.writer.detached):
                note = LeftCallNote(key[1], function, recorder.writer.calls)
                recorder.note(note, titled(error), key[2])
