"""The ranks' own network: addresses and entrances, there and back."""

from __future__ import annotations

import pytest

from distdebug.faults.plan import Plan
from distdebug.faults.spec import parse
from distdebug.record.network import LAUNCHER, MOST_ADDRESSES, SWITCH, Entrances, address, rank_at


def test_each_rank_has_an_address_of_its_own() -> None:
    every = [address(rank) for rank in range(MOST_ADDRESSES)]
    assert len({*every, LAUNCHER, SWITCH}) == MOST_ADDRESSES + 2
    assert [rank_at(text) for text in every] == list(range(MOST_ADDRESSES))
    for text in (LAUNCHER, SWITCH, "10.213.1.1", "127.0.0.1", "10.213.0.0", "300.1.1.1", "", "::1"):
        assert rank_at(text) is None
    for rank in (-1, MOST_ADDRESSES):
        with pytest.raises(ValueError, match="ranks 0 to 249"):
            address(rank)


def test_entrances() -> None:
    given = Entrances(12, 3, (4, 5))
    assert Entrances.read(given.text) == given
    assert given.of_launcher == "/proc/12/fd/3"
    assert given.of_rank(1) == "/proc/12/fd/5"
    for rank in (-1, 2):
        with pytest.raises(IndexError, match="no network namespace: there are 2"):
            given.of_rank(rank)
    with pytest.raises(ValueError, match="invalid literal"):
        Entrances.read("12,x")


def test_a_plan_says_who_makes_the_faults_of_links() -> None:
    plan = Plan((parse("link(0->1, drop)"),), 3, namespaces=True)
    assert Plan.from_json(plan.to_json()) == plan
    plain = Plan(plan.faults, 3)
    assert "namespaces" not in plain.to_json()
    assert Plan.from_json(plain.to_json()) == plain
