"""What all tests have: skips where the machine cannot run a test (the markers `gpu` and `root`),
and runs that cost little (`zygote`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.zygote import Zygote


def pytest_runtest_setup(item: pytest.Item) -> None:
    # The driver's device file answers without importing torch, which costs 2 s a worker.
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU")
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs to run as root")


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Runs programs on ranks that need not import torch; one for each worker of xdist."""
    made = Zygote()
    yield made
    made.close()
