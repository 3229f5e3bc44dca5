"""Samples what each rank takes of the machine, once a second: CPU, memory, threads, GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..record.process_stat import TICKS_PER_S, read_stat
from ..record.run_directory import RunDirectory

SAMPLE_EVERY_S = 1.0


class HostSampler:
    """Appends a line per sample to host.jsonl. One read of /proc a rank; a machine without an
    NVIDIA GPU, or without its library, simply has no GPU in its samples."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._sampled_s = 0.0
        self._cpu: dict[int, tuple[float, int]] = {}
        self._gpus: _Gpus | None = None

    def sample(self, pids: Mapping[int, int]) -> dict[str, Any] | None:
        """One sample of the processes in `pids` (by rank), written and returned; None when the
        last one is less than a second old. `cpu_percent` is of one core, over the time since the
        last sample; memory is in bytes."""
        now_s = time.monotonic()
        if now_s - self._sampled_s < SAMPLE_EVERY_S:
            return None
        self._sampled_s = now_s
        if self._gpus is None:
            self._gpus = _Gpus()
        value: dict[str, Any] = {
            "time_ns": time.time_ns(),
            "ranks": {
                str(rank): seen
                for rank, pid in sorted(pids.items())
                if (seen := self._look(pid, now_s)) is not None
            },
        }
        devices = self._gpus.sample({pid: rank for rank, pid in pids.items()})
        if devices:
            value["gpus"] = devices
        self._directory.append_line(self._directory.host.name, value)
        return value

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


class _Gpus:
    """The NVIDIA devices, through NVML; none after the first error."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        try:
            # Only machines with a driver can load the library, and the import takes 20 ms.
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(one) for one in range(count)]
        except Exception:  # whatever a driver does, the run goes on without GPU samples
            self._devices = []

    def sample(self, ranks: Mapping[int, int]) -> list[dict[str, Any]]:
        """Per device: use in percent, memory in bytes, and the memory of each rank on it."""
        found = []
        try:
            for index, device in enumerate(self._devices):
                use = self._nvml.nvmlDeviceGetUtilizationRates(device)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
                found.append(
                    {
                        "index": index,
                        "use_percent": int(use.gpu),
                        "memory_bytes": int(memory.used),
                        "memory_total_bytes": int(memory.total),
                        "ranks": {
                            str(ranks[one.pid]): one.usedGpuMemory
                            for one in processes
                            if one.pid in ranks
                        },
                    }
                )
        except Exception:  # the same: a device that fell off the bus costs its samples
            self._devices = []
        return found

    def close(self) -> None:
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except Exception:
                pass
            self._nvml, self._devices = None, []
