"""The Prometheus textfile of a run: written every ten seconds while it lives, and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ..record import steady_clock
from ..record.reading.records import newest_ranks
from ..record.snapshot import Snapshot
from ..reports import prometheus
from ..reports.stored import Document
from .limits import NOTICE_EVERY_S, SAMPLE_EVERY_S
from .watch import Look


class MetricsFile:
    """The metrics file of one run. `path` is None where none was asked for: then nothing is
    done."""

    def __init__(self, path: Path | None, run: str, say: Callable[[str], None]) -> None:
        self._path = path
        self._run = run
        self._say = say
        self._totals = prometheus.CallTotals()
        self._snapshots: tuple[Snapshot, ...] = ()
        self._findings: list[prometheus.FindingLabels] = []
        self._counted_s = self._written_s = -1e9
        self._failed = False

    def look(self, look: Look) -> None:
        """Counts the calls of the ranks as they are now, and writes the file when it is due."""
        now_s = time.monotonic()
        if self._path is None or now_s - self._counted_s < SAMPLE_EVERY_S:
            return
        self._counted_s = now_s
        self._take(look)
        if now_s - self._written_s >= NOTICE_EVERY_S:
            self._written_s = now_s
            self._write("running", None)

    def end(self, look: Look, report: Document) -> None:
        """The run is over: what it came to."""
        if self._path is None:
            return
        self._take(look)
        self._findings = prometheus.found_in(report)
        self._write(str(report["outcome"]), int(report["exit_code"]))

    def _take(self, look: Look) -> None:
        self._snapshots = tuple(look.snapshots)
        for snapshot in self._snapshots:
            self._totals.take(snapshot.ranks.values())
        self._findings = [
            prometheus.FindingLabels(one.kind, one.severity, one.proven, one.culprits)
            for one in look.findings
        ]

    def _write(self, outcome: str, exit_code: int | None) -> None:
        if self._path is None:
            return
        state = prometheus.ExportedState(
            ranks=newest_ranks(self._snapshots),
            world_size=max((one.world_size for one in self._snapshots), default=0),
            findings=self._findings,
            now_ns=steady_clock.now_ns(),
            run=self._run,
            outcome=outcome,
            exit_code=exit_code,
            lives=exit_code is None,
        )
        try:
            prometheus.write(self._path, prometheus.render(self._totals, state))
        except OSError as error:
            if not self._failed:
                self._say(f"--prom {self._path} cannot be written: {error.strerror}")
            self._failed = True
