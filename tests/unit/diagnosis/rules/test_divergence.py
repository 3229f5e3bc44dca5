"""Which replicas have drifted apart, since when, and who is in the minority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan

import pytest

from distdebug.record.replicas import (
    ACTIVATION,
    GRADIENT,
    HYPERPARAMETER,
    OPTIMIZER_CLASS,
    OPTIMIZER_STATE,
    PARAMETER,
    bits_of,
)
from distdebug.record.signature import hash64
from distdebug.record.snapshot import Column

from ..builder import Run, all_reduce

OF_A_STEP = (
    Column(PARAMETER, "w"),
    Column(GRADIENT, "w"),
    Column(OPTIMIZER_STATE, "w"),
    Column(HYPERPARAMETER, OPTIMIZER_CLASS),
    Column(HYPERPARAMETER, 'param_groups[0]["lr"]'),
    Column(HYPERPARAMETER, 'param_groups[0]["weight_decay"]'),
)
ALIKE = (1, 2, 3, 4, bits_of(0.5), bits_of(0.0))
DECAYS = (1, 2, 3, 4, bits_of(0.5), bits_of(0.1))
DECOUPLED = (1, 2, 3, hash64("torch.optim.adamw.AdamW"), bits_of(0.5), bits_of(0.1))


def stepped(*of_ranks: tuple[int, ...]) -> Run:
    """All ranks make a step alike, and then one after which these are their columns."""
    run = Run(len(of_ranks))
    for rank, values in enumerate(of_ranks):
        run[rank].steps(1, ALIKE, columns=OF_A_STEP)
        run[rank].steps(2, values, columns=OF_A_STEP)
    return run


def changed(values: tuple[int, ...], *columns: int) -> tuple[int, ...]:
    return tuple(99 if number in columns else one for number, one in enumerate(values))


@pytest.mark.parametrize(("by", "expected"), [(0.01, False), (0.5, True)])
def test_an_input_that_is_declared_to_be_replicated(by: float, expected: bool) -> None:
    """Each rank computes it, and may round otherwise."""
    run, column = Run(2), Column(ACTIVATION, "up #0")
    for rank in (0, 1):
        run[rank].steps(1, [rank], columns=[column])
        run[rank].replicas[0].sampled = {column: [1.0, 1.0 + rank * by]}
    found = [(one.data["quantity"], one.data["step"]) for one in run.errors()]
    assert found == ([("activation", 1)] if expected else [])


@pytest.mark.parametrize(
    ("odd", "others", "quantity", "words"),
    [
        (changed(ALIKE, 0), ALIKE, "parameter", "a write past the optimizer"),
        (changed(ALIKE, 0, 1, 2), ALIKE, "gradient", "not reduced at all"),
        (changed(ALIKE, 0, 2), ALIKE, "optimizer_state", "a write to the state"),
        (changed(DECAYS, 0, 2), DECAYS, "parameter", "a write past the optimizer"),
        (changed(DECOUPLED, 0, 2), DECOUPLED, "optimizer_state", "a write to the state"),
        (changed(ALIKE, 0, 1, 2, 3), ALIKE, "hyperparameter", "not the same on all"),
    ],
)
def test_what_comes_first_in_a_step(
    odd: tuple[int, ...], others: tuple[int, ...], quantity: str, words: str
) -> None:
    (found,) = stepped(others, others, odd).errors()
    assert (found.culprits, found.data["quantity"]) == ((2,), quantity)
    assert words in found.data["likely_cause"]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((2,), "rank 2 alone loaded a state"), ((0, 1, 2), "what ranks have loaded before this step")],
)
def test_what_was_loaded(ranks: Sequence[int], words: str) -> None:
    run = stepped(ALIKE, ALIKE, changed(ALIKE, 0))
    for rank in ranks:
        (*before, (row, values)) = run[rank].replicas[0].rows
        run[rank].replicas[0].rows = [*before, (replace(row, loaded=True), values)]
    (found,) = run.errors()
    assert words in found.data["likely_cause"]


@pytest.mark.parametrize(
    ("name", "words"), [("w", "DDP does not have it"), ("b", "not reduced at")]
)
def test_a_parameter_that_ddp_never_had(name: str, words: str) -> None:
    run = stepped(ALIKE, changed(ALIKE, 0, 1, 2))
    for rank in range(2):
        run[rank].replicas[0].unreduced = frozenset({name})
    (found,) = run.errors()
    assert words in found.data["likely_cause"]


def test_hyper_parameters_are_shown_as_numbers() -> None:
    odd = (*ALIKE[:4], bits_of(0.125), ALIKE[5])
    (found,) = stepped(ALIKE, odd, ALIKE).errors()
    assert 'param_groups[0]["lr"]; rank 1 has 0.125, ranks 0,2 have 0.5' in found.message
    assert found.data["max_difference"] == 0.375


def test_how_far_the_elements_are_apart() -> None:
    run = stepped(ALIKE, ALIKE, changed(ALIKE, 0))
    for rank in range(3):
        run[rank].replicas[0].sampled[OF_A_STEP[0]] = [1.0, nan, 3.0 + (rank == 2) / 4]
    (found,) = run.errors()
    assert found.data["max_difference"] == 0.25
    assert "its elements differ by 0.25 or more" in found.details
    run[2].replicas[0].sampled[OF_A_STEP[0]] = [1.0, nan, 3.0]
    (found,) = run.errors()
    assert found.data["max_difference"] is None, "it is an element that is not in the sample"


def test_ranks_that_have_other_columns_are_compared_by_the_rest() -> None:
    """One has an optimiser of another kind."""
    run = Run(2)
    run[0].steps(1, [1, 5, 7], columns=(*OF_A_STEP[:2], Column(HYPERPARAMETER, "a")))
    run[1].steps(1, [1, 5, 8], columns=(*OF_A_STEP[:2], Column(HYPERPARAMETER, "b")))
    assert not run.errors()
    run[0].steps(2, [1, 5, 7])
    run[1].steps(2, [2, 5, 8])
    (found,) = run.errors()
    assert found.data["quantity"] == "parameter"


@pytest.mark.parametrize("trained", [True, False])
def test_a_parameter_that_no_optimizer_of_a_rank_has(trained: bool) -> None:
    """Of such a model the parameters alone are compared, and late."""
    names = ("w", "b")
    columns = [Column(quantity, name) for quantity in (PARAMETER, GRADIENT) for name in names]
    run = Run(3)
    for rank in (0, 2):
        run[rank].steps(1, [1, 2, 3, 4], columns=columns)
        run[rank].steps(2, [5, 6, 7, 8])
    run[1].steps(2, [5, 6 if trained else 2], columns=columns[:2])
    run[1].steps(2, [5, 7], key="of w", columns=[columns[0], columns[2]])
    if trained:
        assert not run.errors(), "another rank has sent it"
        return
    (found,) = run.errors()
    assert found.culprits == (1,)
    assert (found.data["quantity"], found.data["name"]) == ("parameter", "b")
    assert found.data["likely_cause"] == "no optimizer of rank 1 has it"


def test_equal_replicas() -> None:
    run = Run(3)
    for moment in range(4):
        for rank in range(3):
            run[rank].steps(moment, [moment, 7])
    assert not run.errors()


def test_the_minority_and_the_first_parameter_that_differs() -> None:
    run = Run(4)
    for rank in range(4):
        run[rank].steps(1, [1, 2, 3])
    for rank in range(4):
        run[rank].steps(5, [1, 99 if rank == 2 else 2, 98 if rank == 2 else 3])
    for rank in range(4):
        run[rank].steps(9, [rank, rank, rank])
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("divergence", (2,), (0, 1, 3))
    assert (found.exit_code, found.proven) == (95, True)
    assert 'replicas differ after optimizer step 2 in group "default_pg"' in found.message
    assert 'parameter "layer1.weight" is the first that does (2 of 3)' in found.message
    assert found.message.index("rank 2 has") < found.message.index("ranks 0,1,3 have")
    assert found.ranks[2].location is not None
    assert found.ranks[2].location.line == 90
    data = {"step": 2, "quantity": "parameter", "name": "layer1.weight", "axis": "default_pg"}
    assert found.data.items() >= {**data, "max_difference": None}.items()


def test_without_a_majority_all_are_suspects() -> None:
    run = Run(2)
    for rank in range(2):
        run[rank].steps(1, [rank])
    (found,) = run.errors()
    assert (found.culprits, found.victims) == ((0, 1), ())


def test_a_rank_that_has_not_come_yet_decides_it() -> None:
    """Nothing is said before it has, or is very late."""
    run = Run(3)
    run[0].steps(1, [1])
    run[1].steps(1, [2])
    assert not run.errors()
    run.passes(run.limits.notice_after_s)
    (found,) = run.errors()
    assert found.culprits == (0, 1)
    run[2].steps(1, [2])
    (found,) = run.errors()
    assert found.culprits == (0,)


def test_nobody_waits_for_a_rank_that_has_gone() -> None:
    run = Run(3)
    run[0].steps(1, [1])
    run[1].steps(1, [2])
    run[2].exits(0)
    assert [found.kind for found in run.errors()] == ["divergence"]


def test_nobody_waits_when_the_run_is_over() -> None:
    run = Run(3)
    run[0].steps(1, [1])
    run[1].steps(1, [2])
    run.finished = True
    (found,) = run.errors()
    assert found.culprits == (0, 1)


def test_a_rank_that_left_out_a_step() -> None:
    """Its next step is compared with that of the same moment, not with that of the same number."""
    run = Run(3)
    for moment in (1, 2, 3):
        run[0].steps(moment, [moment])
        run[1].steps(moment, [moment])
        if moment != 2:
            run[2].steps(moment, [10 * moment if moment == 3 else moment])
    (found,) = run.errors()
    assert found.culprits == (2,)
    assert "rank 2 has" in found.message
    assert "after 2 steps" in found.message
    assert "after 3 steps" in found.message


def test_a_rank_whose_inputs_ended_early() -> None:
    """It makes fewer steps, and gets the others' parameters in the end."""
    run = Run(2)
    for moment in range(1, 8):
        run[0].steps(moment, [moment])
        if moment not in (3, 4):
            run[1].steps(moment, [moment])
    assert not run.errors()


def test_several_steps_between_collectives() -> None:
    run = Run(2)
    for rank in range(2):
        for turn in range(3):
            run[rank].steps(5, [turn], turn=turn)
    assert not run.errors()
    for rank in range(2):
        run[rank].steps(5, [rank], turn=3)
    assert [found.kind for found in run.errors()] == ["divergence"]


def test_other_parameters_are_not_compared() -> None:
    """The stages of a pipeline, say."""
    run = Run(2)
    for rank in range(2):
        run[rank].steps(1, [rank], key=f"stage {rank}")
        run[rank].steps(1, [5], key="shared")
    assert not run.errors()


def test_a_mismatch_that_follows_is_a_finding_of_its_own() -> None:
    run = Run(3)
    for rank in range(3):
        run[rank].steps(1, [int(rank == 1)])
    run.each(all_reduce(4))
    run[0, 2].calls(all_reduce(4), waits=True)
    run[1].calls(all_reduce(8), waits=True)
    first = run.errors()[0]
    assert (first.kind, first.culprits) == ("divergence", (1,))


def apart(run: Run, moment: int, values: dict[int, list[int]], alone: set[int]) -> None:
    """Ranks make a step; those in `alone` on their own, or have done so before (negative)."""
    for rank, of_rank in values.items():
        run[rank].steps(moment, of_rank)
        rows = run[rank].replicas[0].rows
        row, digests = rows[-1]
        flagged = replace(row, alone=rank in alone, apart=rank in alone or -rank in alone)
        rows[-1] = (flagged, digests)


def test_ranks_that_all_step_on_their_own_have_no_replicas() -> None:
    run = Run(3)
    apart(run, 1, {0: [1], 1: [2], 2: [3]}, alone={0, 1, 2})
    apart(run, 2, {0: [4], 1: [5], 2: [6]}, alone={0, -1, -2})
    assert not run.errors()


def test_one_that_steps_on_its_own_beside_replicas() -> None:
    """no_sync() around another batch than the others have it around."""
    run = Run(3)
    apart(run, 1, {0: [1], 1: [2], 2: [1]}, alone={1})
    (found,) = run.errors()
    assert (found.culprits, found.victims) == ((1,), (0, 2))
    assert found.data["likely_cause"].startswith("rank 1 made this step without the others")


def test_one_step_more_than_the_others() -> None:
    """Found with the next step that all make; of two ranks, too."""
    run = Run(2)
    apart(run, 1, {0: [1], 1: [1]}, alone=set())
    run[1].steps(1, [5], turn=1)
    rows = run[1].replicas[0].rows
    rows[-1] = (replace(rows[-1][0], alone=True, apart=True), rows[-1][1])
    assert not run.errors()
    apart(run, 2, {0: [2], 1: [6]}, alone={-1})
    (found,) = run.errors()
    assert found.culprits == (0, 1)
    assert found.data["likely_cause"] == "rank 1 made a step before that the others did not make"


def test_a_single_rank_that_did_not_step_on_its_own_proves_no_replicas() -> None:
    """It looked at its model in between, say; nobody has made this step with it."""
    run = Run(3)
    apart(run, 1, {0: [1], 1: [2], 2: [3]}, alone={1, 2})
    assert not run.errors()


def test_parameters_that_were_put_back() -> None:
    """One rank has tried a few steps, and loaded what it had saved before."""
    run = Run(3)
    apart(run, 1, {0: [1], 1: [1], 2: [1]}, alone=set())
    run[0].steps(1, [7], turn=1)
    rows = run[0].replicas[0].rows
    rows[-1] = (replace(rows[-1][0], alone=True, apart=True), rows[-1][1])
    for rank in range(3):
        run[rank].steps(2, [2])
    assert not run.errors()


def seeming(*of_ranks: int, start: tuple[int, ...] = (), size: int = 0, by: float = 0.01) -> Run:
    """What seems to be a replica is this on each rank after the first step, and after the second.
    `start`: what it was before, if it was not equal; `by`: how far the elements of two are apart.
    """
    run = Run(size or len(of_ranks))
    for rank, value in enumerate(of_ranks):
        before = start[rank] if start else 1
        for moment, now in enumerate([before, value, value + 10]):
            run[rank].steps(moment, [now, 5], columns=WEIGHTS)
        replicas = run[rank].replicas[0]
        replicas.like = ("norm.weight", "norm.bias")
        replicas.sampled = {WEIGHTS[0]: [0.5, 1.0 + by * value]}
        replicas.rows = [(replace(row, step=row.step - 1), found) for row, found in replicas.rows]
    return run


WEIGHTS = (Column(PARAMETER, "last.weight"), Column(PARAMETER, "last.bias"))


def test_what_was_equal_and_is_not_summed_is_a_warning() -> None:
    run = seeming(2, 3, 4)
    assert not run.errors()
    (found,) = run.diagnose().findings
    assert repr(found) == "<warning divergence: culprits [0, 1, 2]>"
    assert not found.proven
    assert found.message == (
        'parameters that were equal on all ranks in group "default_pg" at the start differ after '
        "optimizer step 1 at train.py:90 in step: last.weight; no rank's gradient of it was "
        "reduced on that group between backward and step, while those of norm.weight, norm.bias "
        "were: if each rank is meant to have its own, nothing is wrong"
    )
    assert (found.data["step"], found.data["name"]) == (1, "last.weight")
    assert found.data["likely_cause"].startswith("no rank's gradient of it was reduced")


def test_what_seems_to_be_a_replica_and_stays_equal() -> None:
    assert not seeming(2, 2, 2).diagnose().findings


def test_what_each_rank_computes_and_rounds() -> None:
    assert not seeming(2, 3, by=2e-7).diagnose().findings


def test_what_was_not_equal_at_the_start() -> None:
    assert not seeming(2, 3, start=(1, 7)).diagnose().findings


def test_what_some_ranks_of_the_group_do_not_have() -> None:
    assert not seeming(2, 3, size=3).diagnose().findings


def test_what_seems_to_be_a_replica_with_its_start_overwritten() -> None:
    run = seeming(2, 3)
    for rank in range(2):
        del run[rank].replicas[0].rows[0]
    assert not run.diagnose().findings


def test_what_seems_to_be_a_replica_at_steps_of_ranks_of_their_own() -> None:
    run = seeming(2, 3)
    replicas = run[1].replicas[0]
    replicas.rows[1:] = [(replace(row, apart=True), found) for row, found in replicas.rows[1:]]
    assert not run.diagnose().findings
