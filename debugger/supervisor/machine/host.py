"""Samples what each rank takes of the machine, once a second: CPU, memory, threads, GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...diagnosis.findings import Finding
from ...diagnosis.story import step
from ...record.runs.run_directory import RunDirectory
from ...system.proc import TICKS_PER_S, read_stat
from ..limits import SAMPLE_EVERY_S
from .gpus import Gpus


class HostSampler:
    """Appends a line per sample to host.jsonl. One read a rank; a machine without an
    NVIDIA GPU, or without its library, simply has no GPU in its samples."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._sampled_s = 0.0
        self._cpu: dict[int, tuple[float, int]] = {}
        self._gpus: Gpus | None = None
        self._ranks: Mapping[int, int] = {}

    def sample(self, pids: Mapping[int, int]) -> dict[str, Any] | None:
        """Takes one sample of the processes in `pids` (by rank), writes and returns it; None when
        the last one is less than a second old. `cpu_percent` is of one core, over the time since
        the last sample; memory is in bytes."""
        now_s = time.monotonic()
        if now_s - self._sampled_s < SAMPLE_EVERY_S:
            return None
        self._sampled_s = now_s
        if self._gpus is None:
            self._gpus = Gpus()
        value: dict[str, Any] = {
            "time_ns": time.time_ns(),
            "ranks": {
                str(rank): seen
                for rank, pid in sorted(pids.items())
                if (seen := self._look(pid, now_s)) is not None
            },
        }
        self._ranks = {pid: rank for rank, pid in pids.items()}
        devices = self._gpus.sample(self._ranks)
        if devices:
            value["gpus"] = devices
        self._directory.append_line(self._directory.host.name, value)
        return value

    @step("GPUs")
    def explained(self, finding: Finding) -> Finding:
        """The finding, with what is wrong with the GPUs of its culprits."""
        if self._gpus is None:
            return finding
        self._gpus.sample(self._ranks)  # what went wrong may be younger than the last sample
        found = [trouble for rank in finding.culprits for trouble in self._gpus.troubles(rank)]
        if not found:
            return finding
        return replace(
            finding,
            message=f"{finding.message}; {'; '.join(found)}",
            details=(*finding.details, *found),
            data={**finding.data, "gpus": found},
        )

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.close()

    def _look(self, pid: int, now_s: float) -> dict[str, Any] | None:
        stat = read_stat(pid)
        if stat is None:
            self._cpu.pop(pid, None)
            return None
        before_s, before_ticks = self._cpu.get(pid, (now_s, stat.cpu_ticks))
        self._cpu[pid] = (now_s, stat.cpu_ticks)
        elapsed_s = now_s - before_s
        used_s = (stat.cpu_ticks - before_ticks) / TICKS_PER_S
        return {
            "pid": pid,
            "state": stat.state,
            "cpu_percent": round(100 * used_s / elapsed_s, 1) if elapsed_s > 0 else None,
            "rss_bytes": stat.rss_bytes,
            "threads": stat.threads,
        }
