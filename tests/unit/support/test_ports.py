"""Ports that are handed out before somebody listens at them go to one worker alone."""

from __future__ import annotations

import pytest

from tests.support.ports import unclaimed_port


def test_workers_beside_each_other_have_no_port_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    found = []
    for worker in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        found.append({unclaimed_port() % 3 for _ in range(20)})
    assert all(len(one) == 1 for one in found), "of its own third"
    assert len(set.union(*found)) == 3


def test_who_is_alone_has_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    assert len({unclaimed_port() for _ in range(100)}) > 90
