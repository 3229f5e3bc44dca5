"""Samples what each rank takes of the machine, once a second: CPU, memory, threads, GPU; and tells
what is wrong with the NVIDIA devices of this host, through NVML. Every reading of those is taken
for itself: a device that cannot report one thing reports the others."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ...diagnosis.findings import Finding
from ...diagnosis.story import step
from ...hook.loading import dependency
from ...record.runs.run_directory import RunDirectory
from ...record.wording import printable
from ...system.proc import TICKS_PER_S, read_stat
from ..limits import SAMPLE_EVERY_S

_T = TypeVar("_T")

XIDS = {
    13: "a graphics engine exception: often an access out of bounds in a kernel",
    31: "a memory page fault: often an illegal address in a kernel",
    43: "the GPU stopped processing for a process",
    45: "a process was removed from the GPU before it had ended",
    48: "an ECC error of two bits",
    61: "an internal breakpoint of its firmware",
    62: "its firmware halted",
    63: "a memory page or row was retired",
    64: "a memory page or row could not be retired",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "a high rate of ECC errors of one bit",
    94: "an ECC error that was contained",
    95: "an ECC error that was not contained",
    119: "its GSP firmware does not answer",
    120: "an error of its GSP firmware",
}
"""What NVIDIA's table of Xid errors says of the numbers that matter here, in short.

Source: https://docs.nvidia.com/deploy/xid-errors/
"""
_MOST_XIDS = 8
"""So many Xid errors of one device are named in a finding."""


@dataclass
class _Device:
    """A device, and what was seen of it since the run began."""

    index: int
    handle: Any
    name: str
    events: Any = None
    ecc_before: int | None = None
    ecc: int | None = None
    lost: bool = False
    xids: list[int] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    """The ranks that were ever seen on it: a device that is lost reports nothing any more."""

    def troubles(self) -> list[str]:
        """Returns what is wrong with it, each a part of a sentence."""
        found = []
        if self.lost:
            found.append("has fallen off the bus (NVML: GPU is lost)")
        errors = (self.ecc or 0) - (self.ecc_before or 0)
        if errors > 0:
            found.append(
                f"counts {errors} uncorrected ECC error{'s' if errors > 1 else ''} since the run "
                f"began"
            )
        for xid in dict.fromkeys(self.xids[:_MOST_XIDS]):
            known = XIDS.get(xid)
            found.append(f"reports Xid {xid}" + (f" ({known})" if known else ""))
        return found


class Gpus:
    """None where there is no driver, or its library cannot be used."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[_Device] = []
        try:
            # Only machines with a driver have the library, and the import takes 20 ms.
            ctypes.CDLL("libnvidia-ml.so.1")
            pynvml = dependency("pynvml")
            pynvml.nvmlInit()
            self._nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
        except Exception:  # whatever a driver does, the run goes on without GPU samples
            return
        for index in range(count):
            try:
                self._devices.append(self._open(index))
            except Exception:
                pass  # one that is broken already hides no other

    def _open(self, index: int) -> _Device:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = self._ask(None, lambda: nvml.nvmlDeviceGetName(handle)) or "NVIDIA GPU"
        name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        device = _Device(index, handle, printable(name, 60))
        device.ecc = device.ecc_before = self._ecc(device)
        device.events = self._ask(device, lambda: self._listen(handle))
        return device

    def _listen(self, handle: Any) -> Any:
        """Makes a set for the device's Xid errors: one of its own, so that nobody asks whose an
        event is."""
        events = self._nvml.nvmlEventSetCreate()
        self._nvml.nvmlDeviceRegisterEvents(
            handle, self._nvml.nvmlEventTypeXidCriticalError, events
        )
        return events

    def _ask(self, device: _Device | None, question: Callable[[], _T]) -> _T | None:
        """The answer; None where the device has none, which may be since it is lost."""
        try:
            return question()
        except Exception as error:
            lost = getattr(self._nvml, "NVML_ERROR_GPU_IS_LOST", None)
            if device is not None and lost is not None and getattr(error, "value", None) == lost:
                device.lost = True
            return None

    def _ecc(self, device: _Device) -> int | None:
        nvml = self._nvml
        found = self._ask(
            device,
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                device.handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
        )
        return None if found is None else int(found)

    def _hear(self, device: _Device) -> None:
        """The Xid errors that have come since."""
        while device.events is not None and len(device.xids) < 10 * _MOST_XIDS:
            event = self._ask(None, lambda: self._nvml.nvmlEventSetWait_v2(device.events, 0))
            if event is None:
                return  # no more of them: NVML calls that a timeout
            device.xids.append(int(event.eventData))

    def sample(self, ranks: Mapping[int, int]) -> list[dict[str, Any]]:
        """Returns per device its use in percent, memory in bytes, power in watts, uncorrected ECC
        errors since the driver started, Xid errors since the run began, whether it is lost, and the
        memory of each rank (by process, `ranks`) on it. What a device does not report is None."""
        return [self._look(device, ranks) for device in self._devices]

    def _look(self, device: _Device, ranks: Mapping[int, int]) -> dict[str, Any]:
        nvml, handle = self._nvml, device.handle
        use = self._ask(device, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._ask(device, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        power_mw = self._ask(device, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        processes = self._ask(device, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        ecc = self._ecc(device)
        device.ecc = device.ecc if ecc is None else ecc
        if device.ecc_before is None:
            device.ecc_before = ecc
        self._hear(device)
        on_it = {ranks[one.pid]: one.usedGpuMemory for one in processes or () if one.pid in ranks}
        device.ranks |= on_it.keys()
        return {
            "index": device.index,
            "name": device.name,
            "use_percent": None if use is None else int(use.gpu),
            "memory_bytes": None if memory is None else int(memory.used),
            "memory_total_bytes": None if memory is None else int(memory.total),
            "power_w": None if power_mw is None else round(power_mw / 1000, 1),
            "ecc_uncorrected": device.ecc,
            "xids": list(device.xids),
            "lost": device.lost,
            "ranks": {str(rank): used for rank, used in on_it.items()},
        }

    def troubles(self, rank: int) -> list[str]:
        """Returns what is wrong with the devices that this rank was seen on, each a sentence."""
        return [
            f"GPU {device.index} ({device.name}) of rank {rank} {trouble}"
            for device in self._devices
            if rank in device.ranks
            for trouble in device.troubles()
        ]

    def close(self) -> None:
        if self._nvml is None:
            return
        for device in self._devices:
            if device.events is not None:
                events = device.events
                self._ask(None, lambda events=events: self._nvml.nvmlEventSetFree(events))  # type: ignore[misc]
        self._ask(None, lambda: self._nvml.nvmlShutdown())
        self._nvml, self._devices = None, []


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
