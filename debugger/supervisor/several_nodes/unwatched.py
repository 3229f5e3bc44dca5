"""Ranks of the job that no supervisor tells of: their node runs without distdebug, most likely."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from ...node_links.limits import ANSWERS_S
from ...record.layout import GroupState
from ...record.limits import MOST_RANKS
from ...record.snapshot import Snapshot
from ...record.wording import ranks_text, verb

DEFAULT_GROUP = "default_pg"


class Unwatched:
    """Says once who is not watched: members of the default group, made by those who are."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ranks: tuple[int, ...] = ()
        self._since_s = 0.0
        self._said: tuple[int, ...] = ()

    def look(self, newest: Snapshot, lost: Collection[int] = ()) -> None:
        """Looks at the newest world; `lost`: who is on nodes that were watched, and have been
        lost."""
        ranks = tuple(rank for rank in _of_group(newest) or () if rank not in lost)
        if ranks != self._ranks:
            self._ranks, self._since_s = ranks, time.monotonic()
        if time.monotonic() - self._since_s >= ANSWERS_S:
            self.tell()

    def tell(self) -> None:
        """Tells it now, if any rank is unseen."""
        ranks = self._ranks
        if ranks and ranks != self._said:
            self._said = ranks
            self._say(
                f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} not watched: "
                "no distdebug of this job speaks for their node, and nothing is concluded from that"
            )


def unseen(snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks of this world that nobody has told of: as its default group has it, or before that
    is made, as its ranks were told."""
    found = _of_group(snapshot)
    if found is None:
        size = max((rank.world_size for rank in snapshot.ranks.values()), default=0)
        found = tuple(sorted(set(range(min(size, MOST_RANKS))) - snapshot.ranks.keys()))
    return found


def _of_group(snapshot: Snapshot) -> tuple[int, ...] | None:
    for rank in snapshot.ranks.values():
        for group in rank.groups.values():
            if group.desc == DEFAULT_GROUP and group.state is GroupState.READY:
                return tuple(sorted(set(group.ranks) - snapshot.ranks.keys()))
    return None
