"""What NVML tells of the GPUs, on a driver of the test's: samples, and what is said in findings."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.record.runs.run_directory import RunDirectory
from distdebug.supervisor.machine import host
from distdebug.supervisor.machine.host import Gpus, HostSampler

MINE = os.getpid()


def not_supported() -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def gpu_is_lost() -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


class Driver:
    """Two GPUs; the first is used by this process and by a stranger."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[tuple[str, int], Any] = {}
        self.xids: dict[int, list[int]] = {0: [], 1: []}
        self.ecc = {0: 5, 1: 0}
        self.freed: list[Any] = []
        self.is_down = False
        fake: Any = ModuleType("pynvml")
        for name in (
            "NVML_ERROR_GPU_IS_LOST",
            "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
            "NVML_VOLATILE_ECC",
            "nvmlEventTypeXidCriticalError",
        ):
            setattr(fake, name, getattr(pynvml, name))
        fake.nvmlInit = lambda: None
        fake.nvmlShutdown = self.shut_down
        fake.nvmlDeviceGetCount = lambda: 2
        fake.nvmlDeviceGetHandleByIndex = lambda index: index
        fake.nvmlDeviceGetName = self.answer("name", "NVIDIA H200")
        fake.nvmlDeviceGetUtilizationRates = self.answer("use", SimpleNamespace(gpu=55))
        fake.nvmlDeviceGetMemoryInfo = self.answer("memory", SimpleNamespace(used=10, total=80))
        fake.nvmlDeviceGetPowerUsage = self.answer("power", 312_345)
        mine, other = (SimpleNamespace(pid=pid, usedGpuMemory=7) for pid in (MINE, 1))
        fake.nvmlDeviceGetComputeRunningProcesses = self.answer("processes", [mine, other], [])
        fake.nvmlDeviceGetTotalEccErrors = lambda device, *_: (
            self.said("ecc", device) or self.ecc[device]
        )
        fake.nvmlEventSetCreate = dict
        fake.nvmlDeviceRegisterEvents = lambda device, _types, events: events.update(of=device)
        fake.nvmlEventSetWait_v2 = self.next_event
        fake.nvmlEventSetFree = self.freed.append
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        monkeypatch.setattr(ctypes, "CDLL", lambda _name: None)

    def said(self, question: str, device: int) -> Any:
        special = self.answers.get((question, device)) or self.answers.get(("all", device))
        return special() if special is not None else None

    def answer(self, question: str, first: Any, second: Any = None) -> Any:
        def asked(device: int) -> Any:
            self.said(question, device)
            return first if device == 0 or second is None else second

        return asked

    def next_event(self, events: dict[str, int], timeout_ms: int) -> Any:
        assert timeout_ms == 0
        waiting = self.xids[events["of"]]
        if not waiting:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=waiting.pop(0))

    def shut_down(self) -> None:
        self.is_down = True


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


def test_a_sample(driver: Driver) -> None:
    gpus = Gpus()
    first, second = gpus.sample({MINE: 3})
    assert first == {
        "index": 0,
        "name": "NVIDIA H200",
        "use_percent": 55,
        "memory_bytes": 10,
        "memory_total_bytes": 80,
        "power_w": 312.3,
        "ecc_uncorrected": 5,
        "xids": [],
        "lost": False,
        "ranks": {"3": 7},
    }
    assert second["ranks"] == {}
    assert gpus.troubles(3) == []
    gpus.close()
    assert (len(driver.freed), driver.is_down) == (2, True)
    assert gpus.sample({MINE: 3}) == []


def test_what_a_device_does_not_tell_is_left_out(driver: Driver) -> None:
    for question in ("use", "power", "ecc", "name"):
        driver.answers[question, 0] = not_supported
    gpus = Gpus()
    first = gpus.sample({MINE: 3})[0]
    assert (first["use_percent"], first["power_w"], first["ecc_uncorrected"]) == (None,) * 3
    assert (first["name"], first["memory_bytes"], first["lost"]) == ("NVIDIA GPU", 10, False)
    assert gpus.troubles(3) == []


def test_a_gpu_that_has_fallen_off_is_told_of_its_rank_alone(driver: Driver) -> None:
    gpus = Gpus()
    gpus.sample({MINE: 3, 77: 4})
    driver.answers["all", 0] = gpu_is_lost
    lost, other = gpus.sample({MINE: 3, 77: 4})
    assert (lost["lost"], lost["ranks"], lost["use_percent"]) == (True, {}, None)
    assert (other["lost"], other["use_percent"]) == (False, 55)
    assert gpus.troubles(3) == [
        "GPU 0 (NVIDIA H200) of rank 3 has fallen off the bus (NVML: GPU is lost)"
    ]
    assert gpus.troubles(4) == []


def test_errors_since_the_run_began(driver: Driver) -> None:
    gpus = Gpus()
    gpus.sample({MINE: 0})
    driver.ecc[0] += 2
    driver.xids[0] += [79, 79, 12345]
    driver.xids[1] += [48]
    samples = gpus.sample({MINE: 0})
    assert samples[0]["xids"] == [79, 79, 12345]
    assert gpus.troubles(0) == [
        "GPU 0 (NVIDIA H200) of rank 0 counts 2 uncorrected ECC errors since the run began",
        "GPU 0 (NVIDIA H200) of rank 0 reports Xid 79 (the GPU has fallen off the bus)",
        "GPU 0 (NVIDIA H200) of rank 0 reports Xid 12345",
    ]


def test_a_flood_of_errors_has_a_bound(driver: Driver) -> None:
    gpus = Gpus()
    gpus.sample({MINE: 0})
    driver.xids[0] += range(1000, 2000)
    gpus.sample({MINE: 0})
    assert len(gpus.troubles(0)) == 8


def sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostSampler:
    made = HostSampler(RunDirectory.create(tmp_path / "base"))
    monkeypatch.setattr(host, "SAMPLE_EVERY_S", 0.0)
    assert made.sample({2: MINE}) is not None
    return made


FINDING = Finding("missing_rank", "rank 2 has not entered all_reduce()", (2,), victims=(0, 1))


def test_a_finding_says_what_is_wrong_with_its_culprits_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    made = sampler(tmp_path, monkeypatch)
    assert made.explained(FINDING) is FINDING
    driver.xids[0] += [31]
    found = made.explained(FINDING)
    trouble = (
        "GPU 0 (NVIDIA H200) of rank 2 reports Xid 31 (a memory page fault: often an illegal "
        "address in a kernel)"
    )
    assert found.message == f"rank 2 has not entered all_reduce(); {trouble}"
    assert found.details == (trouble,)
    assert found.data == {"gpus": [trouble]}
    assert found.identity == FINDING.identity
    innocent = Finding("missing_rank", "rank 0 has not entered it", (0,), victims=(1, 2))
    assert made.explained(innocent) is innocent
    made.close()


def test_without_a_driver_a_finding_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    made = sampler(tmp_path, monkeypatch)
    assert made.explained(FINDING) is FINDING
    made.close()
