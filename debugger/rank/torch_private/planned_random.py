"""Random operators of DTensor where GPUs are pretended. On those the ranks agree on the state of
the generator before the first of them, which is a call of all; then each draws its own part."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed

from .probe import Private, WatchedPart

_HOME = "torch.distributed.tensor._random"
_STATE_BYTES = 16

DTENSOR_RANDOM = WatchedPart(
    "planned_random",
    "a plan lacks the call by which the random operators of DTensor agree on GPUs",
    Private(_HOME, "is_rng_supported_mesh", ("device_mesh",)),
    Private(_HOME, "OffsetBasedRNGTracker.__init__", ("self", "device_mesh", "run_state_sync")),
    Private(_HOME, "OffsetBasedRNGTracker._distribute_region", ("self", "spec", "generator")),
    Private("torch.distributed.tensor._dispatch", "is_rng_supported_mesh", ("device_mesh",)),
)


@DTENSOR_RANDOM
def on_the_cpu() -> None:
    """Makes the random operators of DTensor run on the CPU in this process."""
    from torch.distributed.tensor import _dispatch, _random

    home: Any = _random
    dispatch: Any = _dispatch
    tracker: Any = home.OffsetBasedRNGTracker

    class Tracker(tracker):  # type: ignore[misc]
        def __init__(self, device_mesh: Any, run_state_sync: bool = True) -> None:
            del device_mesh
            self._device = torch.device("cpu")
            self._device_handle = torch.cuda
            self._use_distribute_region = True
            if run_state_sync:
                torch.distributed.broadcast(torch.zeros(_STATE_BYTES, dtype=torch.uint8), 0)

        @contextlib.contextmanager
        def _distribute_region(self, spec: Any, generator: Any = None) -> Iterator[None]:
            del spec, generator
            yield

    home.OffsetBasedRNGTracker = Tracker
    for module in (home, dispatch):
        module.is_rng_supported_mesh = lambda _: True
