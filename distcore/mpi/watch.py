"""The watch over a collective that MPI would never end: its deadline, an abort, what ranks say."""

from __future__ import annotations

import time

from ..base.deadline import extended, timed_out
from ..errors import Aborted, CallMismatch, DeadlineExceeded, PeerLost
from ..limits import CALL_PAUSE_S, LOOK_AGAIN_S, PLACE_S, STOPPED_S, WORD_S
from .notices import Notices

_now = time.monotonic


class MpiWatch:
    """The watch of one group on one rank; `begin` for each call, `wait` for each wait in it."""

    def __init__(self, notices: Notices) -> None:
        self.notices = notices
        self.calls = 0
        self.text = ""
        self.aborted: str | None = None
        self._deadline = float("inf")
        self._all_came = False

    def __repr__(self) -> str:
        return f"<Watch on {self.who}>"

    def begin(self, text: str, deadline: float) -> int:
        """The number of the call that begins."""
        self.text = text
        self._deadline = deadline
        self._all_came = False
        number = self.calls
        self.calls = number + 1
        return number

    def all_came(self) -> None:
        """Every rank is known to be in the call: whoever is missing now has stopped in it."""
        self._all_came = True

    def wait(self) -> MpiWait:
        """Begins one wait, now."""
        now = _now()
        return MpiWait(self, now, now + min(PLACE_S, (self._deadline - now) / 4))

    @property
    def who(self) -> str:
        """`barrier(), collective #3 of group '0', rank 1`"""
        notices = self.notices
        call = f"{self.text}, collective #{self.calls - 1} of group {notices.name!r}"
        return f"{call}, rank {notices.ranks[notices.rank]}"

    def mismatch(self) -> CallMismatch:
        """Other ranks are in other calls: which, as soon as one tells."""
        self.tell()
        until = _now() + WORD_S
        try:
            while _now() < until:
                self.compare()
                time.sleep(CALL_PAUSE_S)
        except CallMismatch as found:
            return found
        return CallMismatch(f"{self.who}: the other ranks are in other calls")

    def tell(self) -> None:
        """Tell the others where this rank is."""
        self.notices.waiting(self.calls - 1, self.text)

    def check(self, now: float) -> None:
        """Raises where the call was aborted, or its time is up."""
        if self.aborted is not None:
            raise Aborted(self.aborted)
        if now >= self._deadline:
            self._deadline = extended(self._deadline)
            if now >= self._deadline:
                self.compare()
                raise self._too_late()

    def look(self) -> None:
        """Raises where the others say that nothing will come of this call."""
        told = self.notices.told()
        if told is not None:
            raise told
        gone = [peer for peer, calls in self.notices.left().items() if calls < self.calls]
        if gone:
            rank = self.notices.ranks[gone[0]]
            raise PeerLost(f"{self.who}: rank {rank} has left the group", rank)
        self.compare()
        if self.notices.lost:
            raise PeerLost(f"{self.who}: the store that the ranks share is gone")

    def compare(self) -> None:
        """Raises where another rank says that it is in another call."""
        number = self.calls - 1
        for peer, (theirs, text) in self.notices.positions().items():
            if theirs == number and text != self.text:
                rank = self.notices.ranks[peer]
                raise CallMismatch(f"{self.who}: rank {rank} is in {text} there")

    def _too_late(self) -> DeadlineExceeded:
        number = self.calls - 1
        notices = self.notices
        there = {peer for peer, (theirs, _) in notices.positions().items() if theirs >= number}
        there.add(notices.rank)
        absent = [rank for peer, rank in enumerate(notices.ranks) if peer not in there]
        limit_s = getattr(self._deadline, "limit_s", 0.0)
        text = f"{self.who} is not complete after its timeout of {limit_s:g} s"
        culprit = None
        if absent:
            named = f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
            if not self._all_came:
                culprit, did = absent[0], "did not come to it"
            else:
                # One may have stopped in it; others may be through with it, and have gone on.
                culprit = absent[0] if len(absent) == 1 else None
                did = "came to it, and told nothing since"
            text += f": {named} {did}"
        return DeadlineExceeded(text + timed_out(self._deadline), culprit)


class MpiWait:
    """When to look, in one wait."""

    __slots__ = ("_looked", "_next_look", "_place_at", "_watch")

    def __init__(self, watch: MpiWatch, began: float, place_at: float) -> None:
        self._watch = watch
        self._looked = began
        self._next_look = began + LOOK_AGAIN_S
        self._place_at = place_at

    def look(self) -> None:
        """Raises what ends the call, if anything does."""
        now = _now()
        watch = self._watch
        if now > self._looked + STOPPED_S:
            watch.look()
        self._looked = now
        watch.check(now)
        if now >= self._place_at:
            self._place_at = float("inf")
            self._next_look = now
            watch.tell()
        if now >= self._next_look:
            watch.look()
            self._next_look = now + LOOK_AGAIN_S
