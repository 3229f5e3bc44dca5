"""The reader of a run's ranks, which whoever judges a run looks through: the flight records below
one run directory, and the processes of this host.

Where there are other nodes, `several_nodes.JobReader` is one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..diagnosis.findings import Finding
from ..record.reading.records import Records
from ..record.snapshot import Snapshot
from .machine.processes import ProcessTable


class LocalReader:
    """The reader of one run directory. `world_size` overrides what the ranks say (0: unknown, as on
    one node of several)."""

    def __init__(
        self, records: Records, table: ProcessTable, world_size: int | None = None
    ) -> None:
        self._records = records
        self._table = table
        self._world_size = world_size
        self.trust_size = False
        """True where the size of the world counts that the ranks say, whatever `world_size` is."""

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        """Returns all ranks as they are now: one snapshot for each world, the oldest first.
        `finished`: no process of the run is left."""
        self._table.refresh()
        self._records.look()
        size = None if self.trust_size else self._world_size
        return self._records.snapshots(self._table.observe, size, finished=finished)

    def only_calling(self) -> bool:
        """Whether all that was reported since the last look is that ranks of other nodes go on
        calling, and nothing has happened here. False where that is not known, or a look costs
        little."""
        return False

    def ask(self) -> bool:
        """Have all be told anew that is told now and then only, before a look that others follow
        late. False where nothing is: the look can be made at once."""
        return False

    def all_told(self) -> bool:
        """Whether all have told how their ranks are since the first one reported more than that
        these go on calling. False where that is not known."""
        return False

    def here(self) -> tuple[object, ...]:
        """Returns a value that is equal as long as each rank of this host goes on calling, or
        stands still, as before."""
        self._table.refresh()
        return self._records.here(self._table.observe)

    @property
    def change_mark(self) -> tuple[object, ...]:
        """A value that is equal as long as nothing has happened in any rank, as of the last
        look."""
        return self._records.change_mark

    def starting(self) -> bool:
        """Whether a process that may become a rank, and has no record yet, was at work since the
        last call."""
        return self._table.starting(self._records.pids)

    def settled(self, since_s: float, about: Finding) -> bool:
        """Whether the last look has shown all that had happened by then, of the monotonic clock,
        that bears on this finding."""
        del about
        return since_s <= time.monotonic()

    @property
    def faults(self) -> Sequence[str]:
        """Sentences about flight records that cannot be read."""
        return tuple(self._records.faults.values())
