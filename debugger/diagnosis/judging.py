"""A run is judged in one way, whoever asks: the supervisor, the plugin, a report on the spot, the
app.

`judge` compares two series of snapshots that the caller has; `Judge` remembers the last one.
Whatever else is said of a finding (confirmed by a second snapshot, graded by what the launcher
will do) is the business of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..record.snapshot import Snapshot
from .diagnose import Diagnosis, OnFault, diagnose, verdict
from .facts.slips import Slips
from .findings import Finding
from .limits import Limits
from .notices import Notice
from .rules.lucky_sends import lucky_sends
from .rules.straggler import stragglers
from .story import rule


@dataclass(frozen=True, slots=True)
class Judged:
    """The worlds of a run, the oldest first, each with its diagnosis."""

    worlds: Sequence[tuple[Snapshot, Diagnosis]] = ()

    @property
    def findings(self) -> list[Finding]:
        return [one for _, diagnosis in self.worlds for one in diagnosis.findings]

    @property
    def notices(self) -> list[Notice]:
        return [one for _, diagnosis in self.worlds for one in diagnosis.notices]

    @property
    def verdict(self) -> Finding | None:
        """The first error by time."""
        return verdict(self.findings)


class Judge:
    """Remembers the last look at each world, which proves that ranks have not moved since.

    `limits` may be changed between looks. A rule that raises is told to `on_fault` and costs only
    itself; where that is None, it raises.
    """

    def __init__(self, limits: Limits, on_fault: OnFault | None = None) -> None:
        self.limits = limits
        self._on_fault = on_fault
        self._previous: dict[tuple[str, int], Snapshot] = {}
        self._slips = Slips()

    def remember(self, snapshots: Iterable[Snapshot]) -> None:
        """A look that is not judged by itself."""
        self._previous |= {one.world: one for one in snapshots if one.ranks}

    def look(self, snapshots: Iterable[Snapshot]) -> Judged:
        """Judges the snapshots against the previous ones, and keeps them for the next time."""
        worlds = []
        seen = {}
        for snapshot in snapshots:
            if not snapshot.ranks:
                continue
            previous = self._last_of(snapshot)
            found = diagnose(snapshot, previous, self.limits, self._on_fault, self._slips)
            worlds.append((snapshot, found))
            seen[snapshot.world] = snapshot
        self._previous = seen
        return Judged(worlds)

    def _last_of(self, snapshot: Snapshot) -> Snapshot | None:
        """The last look at this world. When it began is corrected where a rank that began earlier
        comes to be seen, and where the clock of another node comes to be known better."""
        known = self._previous.get(snapshot.world)
        if known is not None:
            return known
        mine = _processes(snapshot)
        looks = self._previous.values()
        return next((one for one in looks if not mine.isdisjoint(_processes(one))), None)


def _processes(snapshot: Snapshot) -> set[tuple[int, str, str, int]]:
    return {(number, rank.job, rank.host, rank.pid) for number, rank in snapshot.ranks.items()}


def judge(
    snapshots: Iterable[Snapshot],
    before: Iterable[Snapshot],
    limits: Limits,
    on_fault: OnFault | None = None,
) -> Judged:
    """Judges `snapshots`; `before` has earlier ones of the same worlds."""
    worlds = Judge(limits, on_fault)
    worlds.remember(before)
    return worlds.look(snapshots)


@rule
def warnings_at_the_end(snapshots: Iterable[Snapshot]) -> list[Finding]:
    """Returns warnings about stragglers, and about sends that ended well by luck, for the end of a
    run in which nothing went wrong."""
    return [
        one for snapshot in snapshots for one in (*stragglers(snapshot), *lucky_sends(snapshot))
    ]
