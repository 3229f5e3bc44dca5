"""Skips what this machine cannot run: the meaning of the markers `gpu` and `root`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    # The driver's device file answers without importing torch, which costs 2 s a worker.
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU")
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs to run as root")
