"""Backward passes that leave DDP waiting for gradients, and what comes of them; and their twins."""

from __future__ import annotations

from typing import Any

from ..builder import Run, all_reduce, barrier

GRADIENTS = all_reduce(30)
AUXILIARY = ("aux.weight", "aux.bias")


def leaves_out(rank: Any, *names: str, count: int | None = None) -> None:
    """The end of a backward, before the rank's next call."""
    names = names or AUXILIARY
    rank.notes_down("ddp_unused", line=40, **told(rank, names, count))


def fails(rank: Any, *names: str) -> None:
    """The next forward's error, which nobody catches."""
    rank.notes_down("ddp_failed", "RuntimeError: Expected", 39, **told(rank, names or AUXILIARY))
    rank.notes_down("finding_raised", "ddp_unused_parameters")
    rank.waits.clear()


def told(rank: Any, names: tuple[str, ...], count: int | None = None) -> dict[str, Any]:
    return {
        "group": ["0", 0],
        "model": "Net",
        "parameters": list(names),
        "count": count or len(names),
        "call": len(rank.history.calls),
    }


def test_one_rank_fails_and_the_others_wait() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    leaves_out(run[1])
    run[0, 2].calls(GRADIENTS, waits=True)
    fails(run[1])
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.victims) == ("ddp_unused_parameters", (1,), (0, 2))
    assert found.message == (
        "rank 1 left aux.weight, aux.bias of Net without gradient, and DistributedDataParallel "
        "waits for all of them"
    )
    assert found.ranks[1].location.line == 40
    assert found.details[0] == "rank 1 failed on it in the next forward at train.py:39 in step"
    assert found.group.ranks == (0, 1, 2)
    assert found.exit_code == 1


def test_parameters_that_were_replaced_are_told_as_such() -> None:
    run = Run(2)
    for rank in run.ranks.values():
        data = told(rank, AUXILIARY) | {"replaced": 2}
        rank.notes_down("ddp_unused", line=40, **data)
        rank.notes_down("ddp_failed", "RuntimeError: Expected", 39, **data)
    (found,) = run.errors()
    assert found.details[0].startswith("2 of them have been replaced in the model since: Distr")


def test_others_that_still_compute_are_waited_for() -> None:
    run = Run(2)
    leaves_out(run[0])
    fails(run[0])
    assert run.errors(settled=False) == []
    leaves_out(run[1])
    (found,) = run.errors(settled=False)
    assert found.culprits == (0, 1)


def test_but_not_for_long() -> None:
    run = Run(2)
    leaves_out(run[0])
    fails(run[0])
    run.passes(2.1)
    (found,) = run.errors(settled=False)
    assert (found.culprits, found.victims) == ((0,), (1,))


def test_each_rank_with_other_names() -> None:
    run = Run(2)
    for rank, name in ((0, "layers.3.bias"), (1, "layers.1.bias")):
        leaves_out(run[rank], name)
        fails(run[rank], name)
    (found,) = run.errors(settled=False)
    assert found.message.startswith("ranks 0,1 left parameters of Net without gradient")
    assert found.details[:2] == ["rank 0: layers.3.bias", "rank 1: layers.1.bias"]
    assert found.data["parameters"] == {"0": ["layers.3.bias"], "1": ["layers.1.bias"]}


def test_many_names_are_counted() -> None:
    run = Run(2)
    names = tuple(f"layers.{index}.bias" for index in range(64))
    run[0].calls(GRADIENTS, waits=True)
    leaves_out(run[1], *names, count=100)
    run[1].notes_down("ddp_failed", "RuntimeError", 39, **told(run[1], names, 100))
    (found,) = run.errors(settled=False)
    assert "layers.7.bias and 92 more of Net" in found.message


def test_peers_that_lose_contact_are_consequences() -> None:
    run = Run(3)
    leaves_out(run[1])
    run[0, 2].calls(GRADIENTS, waits=True)
    fails(run[1])
    run[1].exits(1)
    run[0].raises("RuntimeError: Connection closed by peer", communication=True)
    run[2].exits(signal=15)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("ddp_unused_parameters", (1,))


def test_a_mismatch_has_this_cause() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    leaves_out(run[1])
    run[0, 2].calls(GRADIENTS, waits=True)
    run[1].calls(all_reduce(), waits=True, line=44)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.victims) == ("ddp_unused_parameters", (1,), (0, 2))
    assert found.details[0].startswith("what followed: ranks disagree at collective #1")
    assert found.ranks[0].call == "all_reduce(sum, float32[30])"
    assert found.ranks[1].location.line == 40


def test_the_majority_may_be_those_that_left_out() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    for rank in (0, 2):
        leaves_out(run[rank])
    run[1].calls(GRADIENTS, waits=True)
    run[0, 2].calls(barrier(), waits=True)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.victims) == ("ddp_unused_parameters", (0, 2), (1,))


def test_an_early_exit_has_this_cause() -> None:
    run = Run(2)
    run.each(all_reduce(8))
    leaves_out(run[0])
    run[1].calls(GRADIENTS, waits=True)
    run[0].exits(0)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("ddp_unused_parameters", (0,))


def test_an_exception_in_the_cleanup_stays_a_consequence() -> None:
    run = Run(2)
    run.each(all_reduce(8))
    leaves_out(run[0])
    run[1].calls(GRADIENTS, waits=True)
    run[0].calls(barrier(), waits=True)
    run[0].notes_down("unwinding", "RuntimeError: Expected", 39, call=1, destroys=False)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits) == ("ddp_unused_parameters", (0,))


def test_what_all_have_left_out_explains_no_mismatch() -> None:
    run = Run(2)
    run.each(all_reduce(8))
    for rank in (0, 1):
        leaves_out(run[rank])
    run[0].calls(all_reduce(), waits=True)
    run[1].calls(barrier(), waits=True)
    (found,) = run.errors()
    assert found.kind == "op_mismatch"


def test_what_a_later_backward_has_brought_explains_nothing() -> None:
    run = Run(2)
    run.each(all_reduce(8))
    leaves_out(run[0])
    run[0].notes_down("ddp_complete")
    run[0].calls(all_reduce(), waits=True)
    run[1].calls(barrier(), waits=True)
    (found,) = run.errors()
    assert found.kind == "op_mismatch"


def test_a_backward_long_ago_explains_nothing() -> None:
    run = Run(2)
    leaves_out(run[0])
    for _ in range(4):
        run.each(all_reduce(8))
    run[0].calls(all_reduce(), waits=True)
    run[1].calls(barrier(), waits=True)
    (found,) = run.errors()
    assert found.kind == "op_mismatch"


def test_alone_it_is_no_error() -> None:
    run = Run(2)
    run.each(all_reduce(8))
    for rank in run.ranks.values():
        leaves_out(rank)
        rank.exits(0)
    assert run.errors() == []
