"""Messages to ranks that the group does not have, and negative splits, are refused; all others
pass."""

from __future__ import annotations

import pytest

from distdebug.rank.checks.argument_checks import InvalidArgumentError, check
from distdebug.record.signature import ANY_SOURCE

RANKS = (4, 5, 6)


def facts(peer: int) -> tuple[object, ...]:
    return ((), (), None, None, peer, 0)


@pytest.mark.parametrize(("op", "peer"), [("send", 99), ("recv", 3), ("send", -1), ("recv", -2)])
def test_a_peer_that_is_not_there(op: str, peer: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{op}\(\w+={peer}\).*ranks 4,5,6"):
        check(op, facts(peer), RANKS)


@pytest.mark.parametrize(("op", "peer"), [("send", 2), ("recv", 0), ("recv", ANY_SOURCE)])
def test_a_peer_that_is(op: str, peer: int) -> None:
    check(op, facts(peer), RANKS)


def test_collectives_have_no_peer() -> None:
    check("all_reduce", ((), (), 0, None), RANKS)


@pytest.mark.parametrize(("sends", "receives"), [((-2, 8), ()), ((3, 3), (7, -1))])
def test_a_negative_split(sends: tuple[int, ...], receives: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"_split_sizes=.* cannot have -\d rows"):
        check("all_to_all_single", ((), (), None, None, (sends, receives)), RANKS)


@pytest.mark.parametrize("splits", [((), ()), ((0, 6), (3, 3))])
def test_splits_that_may_be(splits: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check("all_to_all_single", ((), (), None, None, splits), RANKS)
