"""The layer of a planned rank: as in a run, but for what needs the other ranks or a supervisor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...record.program_writer import ProgramWriter
from ..agreement.collectives import Agreement
from ..group import outstanding
from ..install import Layer, store_watch
from ..record.recorder import GroupRecord
from ..torch_private.gloo_sockets import NoSockets
from ..torch_private.planning import on_awaited_futures
from ..torch_private.stores import watch_store
from .store import PlannedStore


class PlannedAgreement(Agreement):
    """Nobody is asked: that is what the simulation is for."""

    def guard(self, record: GroupRecord, store: Any) -> None:
        """Calls are made at once."""

    def monitored_barrier(
        self, record: GroupRecord, store: Any, backends: Callable[..., None]
    ) -> Callable[..., None]:
        """The backend's, which waits for nobody."""
        del record, store
        return backends


class PlannedLayer(Layer):
    """See `Layer`. `writer` is this rank's program."""

    agreeing = PlannedAgreement
    remembering = NoSockets

    def __init__(self, directory: Path, writer: ProgramWriter) -> None:
        super().__init__(directory, writer)
        writer.find_line = self.recorder.safe_site
        self._program = writer

    def observe(self) -> None:
        super().observe()
        for name in ("get", "wait", "multi_get"):
            watch_store(PlannedStore, name, store_watch(self.recorder))
        on_awaited_futures(lambda: self.recorder.writer.calls, self._were_awaited)

    def _were_awaited(self, first: int) -> None:
        """Calls from this number on whose futures were handed out were waited for, at this line."""
        site = 0
        for number in sorted(outstanding.awaited):
            if number >= first:
                site = site or self.recorder.safe_site(sys._getframe(1))
                self._program.waited(number, site)
                outstanding.remove(number)

    def come_to_rest(self) -> None:
        # A call whose handle was kept to the end is complete by then in most runs.
        outstanding.works.clear()
        super().come_to_rest()

    def _begin(self) -> None:
        """No thread looks at it from time to time: nobody waits for its heartbeat."""
