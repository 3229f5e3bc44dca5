"""The watch of a run for its supervisor: news are announced; what fails costs that one look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..diagnosis.findings import Finding
from ..record.reading.records import newest_ranks
from ..record.snapshot import Rank
from .announcements import Announcements
from .own_faults import OwnFaults
from .watch import Look, Watch


class GuardedWatch:
    """`ranks` and `world_size` are as of the last look, and `pids_here`, by rank: on another host a
    pid is somebody else's. `judged`: whether that look did not fail."""

    def __init__(
        self,
        watch: Watch,
        faults: OwnFaults,
        announcements: Announcements,
        elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        """`elsewhere`: whether another node's supervisor judges the run now."""
        self._watch = watch
        self._elsewhere = elsewhere
        self._faults = faults
        self._announcements = announcements
        self._told: Look | None = None
        self.judged = True
        self.ranks: Mapping[int, Rank] = {}
        self.pids_here: Mapping[int, int] = {}
        self.world_size = 1

    @property
    def pause_s(self) -> float:
        """The seconds to wait until the next look."""
        return self._watch.pause_s

    def pause(self) -> None:
        """Counts no wait from earlier than now: a rank is at a breakpoint."""
        self._watch.pause()

    def fail(self) -> None:
        """The command has failed, and no more will be known of how ranks ended than is now."""
        self._watch.fail()

    def suspects(self) -> Sequence[Finding]:
        """Returns the findings that are suspected by now of what a notice has said."""
        return [] if self._elsewhere() else self._watch.suspects()

    def look(self, finished: bool = False) -> Look | None:
        """Looks at all ranks, and announces what is found; None where that failed, which costs only
        this look."""
        look = None
        self.judged = False
        with self._faults.guard("the look at the ranks"):
            look = self._watch.only_look() if self._elsewhere() else self._watch.look(finished)
            self.judged = True
            if look is self._told:
                return look  # nothing is new in it, and of many ranks to see that takes a while
            self._told = look
            self.ranks = newest_ranks(look.snapshots)
            ranks = self.ranks.items()
            self.pids_here = {number: rank.pid for number, rank in ranks if not rank.node}
            self.world_size = max([1, *(one.world_size for one in look.snapshots)])
        if look is not None:
            with self._faults.guard("the notices"):
                self._announcements.announce(look)
        return look

    def silent_look(self) -> Look:
        """Looks at all ranks, judges nothing and announces nothing: to judge 16,384 that have just
        ended takes more memory than all that is known of them. An error in it is raised."""
        return self._watch.only_look()

    def found(self, finding: Finding) -> None:
        """Notes the time of what another part of the supervisor has found just now; not of a
        finding that does not say since when it could be seen."""
        if finding.observable_ns:
            self._watch.note_time(finding)

    def detected_after_s(self, identity: tuple[object, ...]) -> float | None:
        """Returns how long after it could be seen a finding was found; None: that is not known."""
        return self._watch.detected_after_s.get(identity)
