"""What is closed before a process waits for its peers at its end."""

from __future__ import annotations

import weakref

import pytest

from distcore.engine import process_exit


@pytest.fixture(autouse=True)
def nothing_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may hold networks of theirs that are not collected yet."""
    monkeypatch.setattr(process_exit, "_beside", weakref.WeakSet())


class Network:
    """Beside a group."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("failure", [None, TimeoutError("rank 2 did not come")])
def test_every_network_beside_a_group_is_closed(failure: BaseException | None) -> None:
    well, other = Network(), Network(failure)
    for network in (well, other):
        process_exit.watch_beside(network)
    assert process_exit.close_beside() is (failure is not None)
    assert (well.closed, other.closed) == (1, 1)


def test_one_that_is_gone_is_not_asked_for() -> None:
    process_exit.watch_beside(Network(TimeoutError()))
    assert process_exit.close_beside() is False
