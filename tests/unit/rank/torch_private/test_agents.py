"""What torchrun's own process tells of the workers that it ends."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerState

from distdebug.rank.torch_private.agents import on_new_world


@pytest.mark.parametrize(
    ("state", "expected"),
    [(WorkerState.HEALTHY, [[17, 18]]), (WorkerState.FAILED, []), (WorkerState.UNHEALTHY, [])],
)
def test_workers_that_begin_anew(
    monkeypatch: pytest.MonkeyPatch, state: WorkerState, expected: list[list[int]]
) -> None:
    """Of those that torchrun ends because one of them has failed nothing is told."""
    told: list[Sequence[int]] = []
    monkeypatch.setattr(SimpleElasticAgent, "_restart_workers", lambda _agent, _workers: "done")
    on_new_world(told.append)
    workers = SimpleNamespace(
        state=state, workers=[SimpleNamespace(id=one) for one in (17, 18, None)]
    )
    assert SimpleElasticAgent._restart_workers(None, workers) == "done"  # type: ignore[arg-type, func-returns-value]
    assert told == expected
