"""What ranks disagree on, from their calls alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdebug.record.dispute import Dispute, settle
from distdebug.record.signature import Signature

RANKS = (10, 20, 30, 40)
PLACE = '#17 of group "default_pg"'


def all_reduce(*shape: int, op: str = "sum", dtype: str = "float32") -> Signature:
    return Signature("all_reduce", ((dtype, shape),), reduce_op=op)


def all_to_all(sends: list[int], receives: list[int]) -> Signature:
    return Signature(
        "all_to_all_single",
        (("float32", (sum(sends),)),),
        sends=tuple(sends),
        receives=tuple(receives),
    )


def judged(*calls: Signature) -> Dispute | None:
    return settle(calls, RANKS[: len(calls)], PLACE)


def test_no_dispute() -> None:
    assert judged(*[all_reduce(4)] * 4) is None
    assert judged(all_to_all([1, 2], [1, 3]), all_to_all([3, 4], [2, 4])) is None


ODD = {
    "op_mismatch": Signature("broadcast", (("float32", (4,)),), root=10),
    "reduce_op_mismatch": all_reduce(4, op="max"),
    "dtype_mismatch": all_reduce(4, dtype="int32"),
    "shape_mismatch": all_reduce(2, 2),
}


@pytest.mark.parametrize("kind", ODD)
def test_one_against_the_others(kind: str) -> None:
    found = judged(all_reduce(4), all_reduce(4), ODD[kind], all_reduce(4))
    assert found is not None
    assert (found.kind, found.culprits, found.victims) == (kind, (30,), (10, 20, 40))
    assert found.message == (
        f"ranks disagree at collective {PLACE} (4 ranks): rank 30 calls {ODD[kind]}; "
        "ranks 10,20,40 call all_reduce(sum, float32[4])"
    )


def test_devices_that_have_backends_of_their_own() -> None:
    """They are named only where ranks disagree on them."""
    cpu, cuda = (replace(all_reduce(4), device=device) for device in ("cpu", "cuda"))
    found = judged(cuda, cuda, cpu, cuda)
    assert found is not None
    assert (found.kind, found.culprits) == ("dtype_mismatch", (30,))
    assert found.message.endswith(
        "rank 30 calls all_reduce(sum, float32[4]) on cpu; "
        "ranks 10,20,40 call all_reduce(sum, float32[4]) on cuda"
    )
    other = judged(cuda, cuda, replace(all_reduce(5), device="cuda"), cuda)
    assert other is not None
    assert " on " not in other.message
    assert Signature.from_json(cuda.to_json()) == cuda


def test_without_a_majority_all_are_culprits() -> None:
    found = judged(all_reduce(4), all_reduce(5), all_reduce(5), all_reduce(4))
    assert found is not None
    assert (found.kind, found.culprits, found.victims) == ("shape_mismatch", RANKS, ())
    assert "ranks 10,40 call all_reduce(sum, float32[4]); ranks 20,30 call" in found.message


def test_many_parties_are_cut_short() -> None:
    ranks = range(9)
    found = settle([all_reduce(rank + 1) for rank in ranks], ranks, PLACE)
    assert found is not None
    assert found.culprits == tuple(ranks)
    assert found.message.endswith("; ...")
    assert found.message.count("calls all_reduce") == 4


def test_splits_are_a_matter_of_pairs() -> None:
    even = all_to_all([1, 1, 1], [1, 1, 1])
    found = judged(all_to_all([1, 2, 0], [1, 1, 1]), even, all_to_all([1, 1, 1], [0, 1, 1]))
    assert found is not None
    assert (found.kind, found.culprits, found.victims) == ("split_mismatch", (10, 20), (30,))
    assert found.message == (
        f"rank 10 sends 2 elements to rank 20, which expects 1, in all_to_all_single {PLACE}"
    )


def test_splits_that_do_not_add_up_are_wrong_by_themselves() -> None:
    right = all_to_all([2, 2], [2, 2])
    output = (("float32", (4,)),)
    short = Signature("all_to_all_single", output, output, sends=(1, 2), receives=(2, 2))
    long = Signature("all_to_all_single", output, output, sends=(2, 2), receives=(2, 3))
    for wrong, text in (
        (short, "3 elements, where its input has 4"),
        (long, "5 elements, where its output has 4"),
    ):
        found = settle([right, wrong], (10, 20), PLACE)
        assert found is not None
        assert (found.kind, found.culprits, found.victims) == ("invalid_argument", (20,), (10,))
        assert found.message == (
            f"the splits of rank 20 do not add up in all_to_all_single {PLACE}: {text}"
        )
    assert settle([short, long], (10, 20), PLACE) is None  # each is refused by itself


def test_splits_of_a_tensor_whose_size_is_not_known() -> None:
    unknown = (("float32", (-1, 2)),)
    call = Signature("all_to_all_single", unknown, unknown, sends=(1, 2), receives=(2, 2))
    found = settle([all_to_all([2, 2], [2, 2]), call], (10, 20), PLACE)
    assert found is not None
    assert found.kind == "split_mismatch"
