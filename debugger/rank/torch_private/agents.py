"""Torchrun's own process, which ends its workers and starts them anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .probe import before


def on_new_world(told: Callable[[Sequence[int]], None]) -> None:
    """Be told the processes of the workers that torchrun is about to end although none of them has
    failed: another node has come or gone, and the workers begin anew in a world of another size."""
    from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerState

    def restart(_agent: Any, workers: Any) -> None:
        if workers.state == WorkerState.HEALTHY:
            told([one.id for one in workers.workers if type(one.id) is int])

    before(SimpleElasticAgent, "_restart_workers", restart)
