"""The layer of a planned rank: as in a run, but for what needs the other ranks or a supervisor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...record.program_writer import ProgramWriter
from ..agreement.collectives import Agreement
from ..install import Layer, store_watch
from ..record.recorder import GroupRecord
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

    def __init__(self, directory: Path, writer: ProgramWriter) -> None:
        super().__init__(directory, writer)
        writer.find_line = self.recorder.safe_site

    def observe(self) -> None:
        super().observe()
        for name in ("get", "wait", "multi_get"):
            watch_store(PlannedStore, name, store_watch(self.recorder))

    def _begin(self) -> None:
        """No thread looks at it from time to time: nobody waits for its heartbeat."""
