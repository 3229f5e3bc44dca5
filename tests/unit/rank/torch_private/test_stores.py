"""The stores in which nodes and ranks meet, as torch has them; what torchrun says of its workers"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerState

from distdebug.rank.torch_private.stores import _host_of, on_new_world


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("node0:29400", "node0"),
        ("node0", "node0"),  # c10d has a port of its own
        ("10.0.0.1", "10.0.0.1"),
        ("[fd00::1]:29400", "fd00::1"),
        ("[fd00::1]", "fd00::1"),
        (" node0:29400 ", "node0"),
        ("", "localhost"),
        (":29400", "localhost"),
    ],
)
def test_the_host_of_an_endpoint(endpoint: str, host: str) -> None:
    params = SimpleNamespace(endpoint=endpoint, backend="c10d", get=lambda _name, default: default)
    assert _host_of(params) == host


def test_nodes_that_meet_in_a_file_have_no_host() -> None:
    """Each would take itself for the host."""
    params = SimpleNamespace(endpoint="/shared/x", backend="c10d", get=lambda *_: "file")
    assert _host_of(params) == ""


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
