"""The reader of a run's ranks, which a supervisor, or anybody else who judges a run, looks through.

A reader gives snapshots. Whether it has the flight records and the processes on this host, or gets
them from another one, is its own business.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from ..diagnosis.findings import Finding
from ..record.reading.records import Records
from ..record.snapshot import Snapshot
from .machine.processes import ProcessTable


class RunReader(Protocol):
    """The calls that `watch` makes of a reader of ranks."""

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        """All ranks as they are now: one snapshot for each world, the oldest first. `finished`: no
        process of the run is left."""

    def only_calling(self) -> bool:
        """Whether all that was reported since the last look is that ranks of other nodes go on
        calling, and nothing has happened here. False where that is not known, or a look costs
        little."""

    def ask(self) -> bool:
        """Have all be told anew that is told now and then only, before a look that others follow
        late. False where nothing is: the look can be made at once."""

    def all_told(self) -> bool:
        """Whether all have told how their ranks are since the first one reported more than that
        these go on calling. False where that is not known."""

    @property
    def change_mark(self) -> tuple[object, ...]:
        """A value that is equal as long as nothing has happened in any rank, as of the last
        look."""

    def starting(self) -> bool:
        """Whether a process that may become a rank, and has no record yet, was at work since the
        last call."""

    def settled(self, since_s: float, about: Finding) -> bool:
        """Whether the last look has shown all that had happened by then, of the monotonic clock,
        that bears on this finding."""


class LocalReader:
    """The flight records below one run directory, and the processes of this host. `world_size`
    overrides what the ranks say (0: unknown, as on one node of several)."""

    def __init__(
        self, records: Records, table: ProcessTable, world_size: int | None = None
    ) -> None:
        self._records = records
        self._table = table
        self._world_size = world_size
        self.trust_size = False
        """True where the size of the world counts that the ranks say, whatever `world_size` is."""

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        self._table.refresh()
        self._records.look()
        size = None if self.trust_size else self._world_size
        return self._records.snapshots(self._table.observe, size, finished=finished)

    def only_calling(self) -> bool:
        return False

    def ask(self) -> bool:
        return False

    def all_told(self) -> bool:
        return False

    def rests(self, at_rest: bool) -> None:
        """Whether nothing but calling ranks of other nodes is to be seen by the next look."""
        self._records.at_rest = at_rest

    def here(self) -> tuple[object, ...]:
        """Returns a value that is equal as long as each rank of this host goes on calling, or
        stands still, as before."""
        self._table.refresh()
        return self._records.here(self._table.observe)

    @property
    def change_mark(self) -> tuple[object, ...]:
        return self._records.change_mark

    def starting(self) -> bool:
        return self._table.starting(self._records.pids)

    def settled(self, since_s: float, about: Finding) -> bool:
        del about
        return since_s <= time.monotonic()

    @property
    def faults(self) -> Sequence[str]:
        """Sentences about flight records that cannot be read."""
        return tuple(self._records.faults.values())
