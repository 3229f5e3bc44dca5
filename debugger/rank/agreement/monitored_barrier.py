"""monitored_barrier on every backend: through the store, and with what the missing ranks do.

torch has it for gloo alone, where the ranks that came blame the first one for another's absence.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from distcore.groups.monitored_barrier import BarrierFailed, monitored_barrier

from .. import torch_private
from ..record.findings import OwnFinding
from ..record.recorder import GroupRecord, Recorder
from . import peer_status


class Monitor:
    """The monitored barriers of one group, on one rank."""

    def __init__(self, recorder: Recorder, record: GroupRecord, store: Any) -> None:
        self._recorder = recorder
        self._record = record
        name = f"distdebug/monitored/{record.name}/{recorder.namesakes(record)}"
        self._store: Any = torch_private.dist.PrefixStore(name, store)
        self._number = 0

    def barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Return when all ranks have called it. Raises BarrierFailed on all of them otherwise: it
        names the first missing rank, or all, and says what each does instead."""
        number, self._number = self._number, self._number + 1
        record, recorder = self._record, self._recorder
        limit_s = record.timeout_s if timeout is None else timeout.total_seconds()
        directory: Path = recorder.writer.path.parent.parent
        seq = record.slot.issued - 1
        try:
            monitored_barrier(
                self._store,
                record.ranks,
                record.group_rank,
                number,
                limit_s,
                wait_all_ranks,
                lambda missing: peer_status.doing(directory, missing, recorder.job),
            )
        except BarrierFailed as failed:
            # What the report says, if nobody catches the error.
            failed.finding = OwnFinding(record, seq, "missing_rank", failed.reason, failed.missing)
            raise
