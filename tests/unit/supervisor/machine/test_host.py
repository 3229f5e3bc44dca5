"""Samples of the machine: once a second, cheap, with or without a GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from distdebug.record.runs.run_directory import RunDirectory
from distdebug.supervisor.machine import host
from distdebug.supervisor.machine.host import HostSampler


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
