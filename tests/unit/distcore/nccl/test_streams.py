"""Streams of this process alone, with a stand-in for cuda.core and torch's streams."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest
import torch

from distcore.nccl.device import OwnStreams


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of cuda.core and torch."""
    asked: list[Any] = []

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def set_current(self) -> None:
            asked.append(f"{self.index} is current")

        def create_stream(self, *, options: Any) -> Any:
            asked.append(options)
            return types.SimpleNamespace(handle=100 + len(asked))

    core = types.SimpleNamespace(Device=Device, StreamOptions=lambda **options: options)
    real = importlib.import_module
    monkeypatch.setattr(
        importlib, "import_module", lambda name: core if name == "cuda.core" else real(name)
    )
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: [handle, device])
    return asked


def test_each_is_new_until_one_is_given_back(made: list[Any]) -> None:
    streams = OwnStreams()
    first, second = streams.take(1), streams.take(1)
    assert first != second
    assert first[1] == 1
    assert made[:2] == ["1 is current", {"nonblocking": True, "priority": -1}]
    streams.give_back(first, 1)
    assert streams.take(0) is not first  # of another device
    assert streams.take(1) is first
    assert streams.take(1) not in (first, second)


def test_without_cuda_core_they_are_torchs(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_name: str) -> Any:
        raise RuntimeError("CUDA_ERROR_NOT_SUPPORTED")

    streams = OwnStreams()
    monkeypatch.setattr(importlib, "import_module", fails)
    monkeypatch.setattr(torch.cuda, "Stream", lambda index, priority: ("torch's", index, priority))
    shared = streams.take(0)
    assert shared == ("torch's", 0, -1)
    streams.give_back(shared, 0)
    assert streams._idle[0] == []  # it was never ours alone


def test_cuda_core_has_what_is_asked_of_it() -> None:
    core = pytest.importorskip("cuda.core", reason="pip install 'distdebug[nccl]'")
    options = core.StreamOptions(nonblocking=True, priority=-1)
    assert (options.nonblocking, options.priority) == (True, -1)
    assert callable(core.Device.create_stream)
    assert callable(core.Device.set_current)
