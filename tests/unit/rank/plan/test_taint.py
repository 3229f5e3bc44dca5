"""Values that are not known have one origin on two ranks where they have made the same of the same,
and else have not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from distdebug.rank.plan.taint import OWN, OperatorCall, Taint, mixed
from distdebug.rank.torch_private.operator_calls import operator_of

ATEN: Any = torch.ops.aten


class Rank:
    """Makes operators as a planned rank does that follows what is not known."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.taint = Taint()

    def unknown(self, *shape: int, of: str = "#0.1/0") -> Tensor:
        """What a call has given all ranks; what stands in for it is each one's own."""
        found = torch.full(shape, float(self.number))
        self.taint.add(found, mixed(of) if of else OWN)
        return found

    def do(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        call = OperatorCall(operator_of(operator), args, kwargs, self.taint.origin)
        found = operator(*args, **kwargs)
        for one, origin in call.of(found):
            self.taint.add(one, origin)
        return found

    def of(self, tensor: Tensor) -> bytes | None:
        return self.taint.origin(tensor)


def adds(rank: Rank, to: Tensor) -> Tensor:
    weight = rank.unknown(3)
    found: Tensor = rank.do(ATEN.mul.Tensor, weight, to)
    rank.do(ATEN.add_.Tensor, found, weight, alpha=2)
    return found


def seeded(rank: Rank, seed: int) -> Tensor:
    torch.manual_seed(seed)
    found: Tensor = rank.do(ATEN.native_dropout.default, rank.unknown(8), 0.5, True)[0]
    return found


def into_a_part(rank: Rank, of: str) -> Tensor:
    """Of memory that nobody has written: what was in it before is of no interest."""
    whole = torch.full((6,), float(rank.number))
    rank.do(ATEN.copy_.default, whole[:3], rank.unknown(3))
    rank.do(ATEN.copy_.default, whole[3:], rank.unknown(3, of=of))
    return whole


def of_lists(rank: Rank, second: float) -> Tensor:
    """By each one's place: one that is the rank's own is no matter of the others."""
    lists = [rank.unknown(2), torch.tensor([second])]
    found: list[Tensor] = rank.do(ATEN._foreach_mul.Scalar, lists, 3.0)
    return found[0]


def by_out(rank: Rank, factor: float) -> Tensor:
    into = torch.full((2,), float(rank.number))
    found: Tensor = rank.do(ATEN.mul.out, rank.unknown(2), torch.tensor([factor, 1.0]), out=into)
    return found


@pytest.mark.parametrize(
    ("made", "given", "other"),
    [
        pytest.param(adds, torch.ones(3), torch.tensor([1.0, 1.0, 2.0]), id="known values"),
        pytest.param(adds, torch.ones(3), torch.ones(1), id="shapes"),
        pytest.param(seeded, 1, 2, id="random numbers"),
        pytest.param(into_a_part, "#1.1/0", "#1.1/1", id="parts of memory"),
        pytest.param(by_out, 1.0, 2.0, id="results elsewhere"),
    ],
)
def test_the_same_of_the_same(made: Callable[[Rank, Any], Tensor], given: Any, other: Any) -> None:
    ranks = [Rank(0), Rank(1)]
    origins = []
    for rank, value in zip((*ranks, *ranks), (given, given, given, other), strict=True):
        kept = made(rank, value)
        origins.append(rank.of(kept))
    first, same, again, differs = origins
    assert first == same == again
    assert first
    assert differs
    assert first != differs


def test_one_of_a_list_that_is_a_ranks_own() -> None:
    ranks = [Rank(0), Rank(1)]
    kept = [of_lists(rank, float(rank.number)) for rank in ranks]
    first, second = (rank.of(one) for rank, one in zip(ranks, kept, strict=True))
    assert first
    assert first == second


def test_what_came_of_a_ranks_own_value_is_its_own() -> None:
    rank = Rank(0)
    own = rank.unknown(3, of="")
    found = rank.do(ATEN.add.Tensor, rank.unknown(3), own)
    assert rank.of(found) == OWN
    rank.do(ATEN.copy_.default, found, rank.unknown(3))
    assert rank.of(found)  # of which nothing is left
    whole = rank.unknown(6, of="")
    rank.do(ATEN.copy_.default, whole[:3], rank.unknown(3))
    assert rank.of(whole) == OWN


def test_a_known_tensor_has_none() -> None:
    rank = Rank(0)
    assert rank.of(torch.ones(3)) is None
    with rank.taint.everywhere():
        assert rank.of(torch.ones(3)) == OWN
