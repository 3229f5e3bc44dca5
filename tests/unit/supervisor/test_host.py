"""Samples of the machine: once a second, cheap, with or without a GPU."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import pytest

from debugger.record.run_directory import RunDirectory
from debugger.supervisor import host
from debugger.supervisor.host import HostSampler


class Clock:
    """Stands in for the module's clock."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(host, "time", clock)
    return clock


def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_one_line_a_second(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    no_gpu(monkeypatch)
    run = RunDirectory.create(tmp_path / "base")
    sampler = HostSampler(run)
    pids = {0: os.getpid(), 1: 2**22 + 1}
    assert sampler.sample(pids) is not None
    clock.now_s += 0.5
    assert sampler.sample(pids) is None
    clock.now_s += 0.5
    value = sampler.sample(pids)
    assert value is not None
    assert set(value["ranks"]) == {"0"}
    rank = value["ranks"]["0"]
    assert rank["rss_bytes"] > 1_000_000
    assert rank["threads"] >= 1
    assert rank["cpu_percent"] >= 0
    assert "gpus" not in value
    lines = run.host.read_text().splitlines()
    assert [json.loads(line)["time_ns"] for line in lines] == [int(100e9), int(101e9)]
    sampler.close()


def test_a_gpu_is_sampled_and_its_failure_costs_only_its_samples(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = types.ModuleType("pynvml")
    process = types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=7)
    other = types.SimpleNamespace(pid=1, usedGpuMemory=9)
    broken = False

    def use(_: int) -> types.SimpleNamespace:
        if broken:
            raise RuntimeError("GPU is lost")
        return types.SimpleNamespace(gpu=55)

    for name, value in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": use,
        "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(used=10, total=80),
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [process, other],
    }.items():
        setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    sampler = HostSampler(RunDirectory.create(tmp_path / "base"))
    first = sampler.sample({3: os.getpid()})
    assert first is not None
    assert first["gpus"] == [
        {
            "index": 0,
            "use_percent": 55,
            "memory_bytes": 10,
            "memory_total_bytes": 80,
            "ranks": {"3": 7},
        }
    ]
    broken = True
    clock.now_s += 1
    second = sampler.sample({3: os.getpid()})
    assert second is not None
    assert "gpus" not in second
    sampler.close()
