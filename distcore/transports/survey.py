"""The blame when a call's time has run out: the ranks ask each other whom they wait for.

Most of those that wait do so for somebody who waits himself. Each rank whose time is up says whom
it waits for, a rank that hears this in a call does the same, and after half a second all know the
same: at the end of every chain stands a rank that said nothing. It is stopped, or elsewhere.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import DeadlineExceeded
from .frames import BadFrame, Closed, waits
from .link import PeerLink, ready

LEAST_S, MOST_S, SHARE = 0.5, 5.0, 0.25
"""How long answers are waited for: this share of the call's own timeout, within these bounds. Who
is in the call and is given no core for so long is blamed in place of those that it waits for. On a
crowded machine that may be for seconds, and after a timeout of minutes nobody minds five."""


def answers_within_s(deadline: float) -> float:
    """Returns how long a rank whose call had this deadline waits for answers."""
    return min(max(LEAST_S, SHARE * getattr(deadline, "limit_s", 0.0)), MOST_S)


@dataclass(frozen=True)
class Answers:
    """By rank that answered: the ranks that it waits for; `rank` is the one that asks. Ranks are
    the group's."""

    rank: int
    answers: dict[int, tuple[int, ...]]

    @property
    def silent(self) -> list[int]:
        """The ranks at the chains' ends that said nothing; none where they wait in a circle."""
        chains = self._chains()
        return sorted(rank for rank in chains if rank not in self.answers)

    def _chains(self) -> dict[int, int]:
        """Returns by rank that is waited for, directly or not, the one that waits for it."""
        found: dict[int, int] = {}
        open_ends = [self.rank]
        while open_ends:
            waiter = open_ends.pop(0)
            for rank in self.answers.get(waiter, ()):
                if rank not in found and rank != self.rank:
                    found[rank] = waiter
                    open_ends.append(rank)
        return found

    def explained(self, names: Sequence[int]) -> str:
        """Tells what was found; `names` are the global ranks."""
        silent = self.silent
        if not silent:
            return "every rank in turn waits for another"
        return "; ".join(self._chain(rank, names) for rank in silent)

    def _chain(self, rank: int, names: Sequence[int]) -> str:
        waiters = self._chains()
        if waiters[rank] == self.rank:
            return f"rank {names[rank]} does not answer"
        links = []
        while (waiter := waiters[rank]) != self.rank:
            links.append(f"rank {names[waiter]} waits for rank {names[rank]}")
            rank = waiter
        return f"{', '.join(reversed(links))}, which does not answer"


class Survey:
    """A round of questions; it is over when it is made."""

    _told: DeadlineExceeded | None = None

    def __init__(
        self,
        links: Mapping[int, PeerLink],
        rank: int,
        awaited: Sequence[int],
        asked: bool,
        limit_s: float = LEAST_S,
    ) -> None:
        """Ask all peers; `awaited` is whom this rank waits for; `asked`: it has time left, but a
        peer has not; `limit_s`: see `answers_within_s`. What is under way on the links is thrown
        away. Raises the GroupFailed of a peer that knows more; where that is only that its time ran
        out, with the connection on which this rank heard nothing."""
        self._links = links
        self.found = Answers(rank, {rank: tuple(awaited)})
        self.lost: dict[int, Closed | BadFrame] = {}
        self._asked = asked
        until = time.monotonic() + limit_s
        frame = waits(tuple(awaited))
        for link in links.values():
            if link.ended is None:
                link.outgoing.abandon()
                try:
                    link.outgoing.control(frame)
                except Closed as ended:
                    self.lost[link.peer] = ended
        asked_of = {link.descriptor: link for link in links.values() if link.ended is None}
        for link in tuple(asked_of.values()):  # some of it may have been read already
            self._hear(link)
        while self._open() and (left_s := until - time.monotonic()) > 0:
            heard = asked_of.keys() - {links[peer].descriptor for peer in self.lost}
            for descriptor in ready(heard, select.POLLIN, left_s):
                self._hear(asked_of[descriptor])
        if self._told is not None:
            self._told.link = self._told.link or self.unheard
            raise self._told

    @property
    def unheard(self) -> tuple[int, int] | None:
        """The ends of a connection on which this rank waited, and got no answer."""
        awaited = self.found.answers[self.found.rank]
        silent = [peer for peer in awaited if peer not in self.found.answers]
        return self._links[silent[0]].ends if silent else None

    def _open(self) -> bool:
        silent = self.found.silent
        if self._told is not None and self.unheard is None:
            return False
        if not silent:
            return self._asked  # a circle: the one who asked says what it makes of it
        return not self.lost.keys() & set(silent)

    def _hear(self, link: PeerLink) -> None:
        try:
            link.incoming.skim()
            link.push()  # the question, behind a frame that was not through
        except (Closed, BadFrame) as error:
            self.lost[link.peer] = error
        except DeadlineExceeded as heard:
            self._told = self._told or heard
        if link.incoming.gave_up is not None:
            known = tuple(rank for rank in link.incoming.gave_up.awaited if rank in self._links)
            self.found.answers[link.peer] = known
