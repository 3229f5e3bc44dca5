"""What may be replicas is told by how all parameters began; and DDP models that are left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from distdebug.record.replicas import (
    BUFFER,
    CONSTANT,
    ELSEWHERE,
    EVALUATED,
    EXCHANGING,
    FROZEN,
    MATRIX,
    PARAMETER,
    PASSING,
    PLACED,
    RANDOM_STATE,
    SUMMING,
    UNUSED,
)
from distdebug.record.snapshot import Column

from ..builder import Run, all_reduce

NORM, SHARD, ROUTER = "block.norm.weight", "block.up.weight", "router.weight"
VECTOR, RANDOM = frozenset({CONSTANT}), frozenset({MATRIX})
TRAITS = {NORM: VECTOR, SHARD: RANDOM, ROUTER: RANDOM}
MIXED = {NORM: (1, 1), SHARD: (2, 3), ROUTER: (4, 4)}
"""By rank, at the start: a shard is not the same on both."""


def table(
    start: dict[str, tuple[int, ...]],
    *later: dict[str, tuple[int, ...]],
    use: str = PASSING,
    traits: dict[str, frozenset[str]] | None = None,
    busy: bool = False,
    finished: bool = True,
) -> Run:
    """What the columns are on each rank at the start, and what of it is other after each step."""
    size = len(next(iter(start.values())))
    run = Run(size)
    columns = [Column(PARAMETER, name) for name in start]
    for rank in range(size):
        now = dict(start)
        for moment, changes in enumerate([{}, *later]):
            now |= changes
            run[rank].steps(moment, [values[rank] for values in now.values()], columns=columns)
        one = run[rank].replicas[0]
        one.use = use
        one.traits = [(traits or TRAITS)[name] for name in start]
        one.rows = [(replace(r, step=r.step - 1, busy=busy), values) for r, values in one.rows]
    run.finished = finished
    return run


def findings(run: Run) -> list[Any]:
    return [one for one in run.diagnose().findings if one.kind == "divergence"]


def named(run: Run) -> list[tuple[str, int, Sequence[str]]]:
    return [
        (one.severity, one.data["step"], one.data["parameters"])
        for one in findings(run)
        if "parameters" in one.data
    ]


def test_a_norm_beside_shards() -> None:
    run = table(MIXED, {SHARD: (5, 6)}, {NORM: (7, 8)})
    (found,) = findings(run)
    assert named(run) == [("warning", 2, [NORM])]
    assert (found.culprits, found.proven) == ((0, 1), False)
    assert "no collective reduced its gradient" in found.data["likely_cause"]
    assert found.message.endswith("if each rank is meant to have its own, nothing is wrong")


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([(1, 1), (2, 2), (3, 4)], ""),  # after the step at which the parameters part
        ([(1, 1), (2, 3), (4, 5)], "or dropout: the random state of cpu differs since step 2"),
        ([(1, 2), (3, 4), (5, 5)], "or dropout: the random state of cpu differs since step 1"),
        ([(1, 2), (1, 2), (1, 2)], ""),  # nothing is drawn by it
        ([(1, 1), (2, 2), (3, 3)], ""),
    ],
)
def test_random_states(states: Sequence[tuple[int, int]], words: str) -> None:
    """They explain a difference, and are none by themselves."""
    for later in ({NORM: (7, 8)}, {NORM: (7, 7)}):
        run = table(MIXED, {}, later)
        for rank in (0, 1):
            of_rank = run[rank].replicas
            columns = [Column(RANDOM_STATE, "cpu")]
            for step, state in enumerate(states):
                run[rank].steps(step, [state[rank]], key="random", columns=columns)
            random = of_rank[-1]
            random.use, random.traits = RANDOM_STATE, [frozenset()]
            rows = enumerate(random.rows, 1)
            random.rows = [(replace(row, moment=(n, 0)), values) for n, (row, values) in rows]
        found = findings(run)
        assert len(found) == (later[NORM] == (7, 8))
        for one in found:
            assert ("random state" in one.data["likely_cause"]) == bool(words)
            assert words in one.data["likely_cause"]


def test_the_minority_of_three() -> None:
    start = {name: (*values, values[1]) for name, values in MIXED.items()}
    (found,) = findings(table(start, {ROUTER: (4, 9, 4)}))
    assert (found.culprits, found.victims) == ((1,), (0, 2))


@pytest.mark.parametrize(
    ("start", "traits"),
    [
        pytest.param({**MIXED, SHARD: (2, 2)}, TRAITS, id="seeds of shards are equal, too"),
        pytest.param(
            {**MIXED, ROUTER: (4, 5), NORM: (1, 2), SHARD: (2, 2)},
            {**TRAITS, ROUTER: VECTOR},
            id="no matrix began apart",
        ),
        pytest.param(MIXED, {**TRAITS, ROUTER: VECTOR | RANDOM}, id="a matrix of zeros"),
        pytest.param(MIXED, {**TRAITS, ROUTER: RANDOM | {PLACED}}, id="a DTensor"),
    ],
)
def test_what_may_be_a_shard(
    start: dict[str, tuple[int, ...]], traits: dict[str, frozenset[str]]
) -> None:
    changed = {name: (8, 9) for name in start if name != NORM}
    assert not findings(table(start, changed, traits=traits))


def test_a_bias_of_a_shard() -> None:
    """Zeros at the start, on all ranks."""
    start = {**MIXED, "block.up.bias": (0, 0)}
    traits = {**TRAITS, "block.up.bias": VECTOR}
    assert not findings(table(start, {"block.up.bias": (8, 9)}, traits=traits))


def test_what_is_apart_for_a_while() -> None:
    """Averaged every third step."""
    assert not findings(table(MIXED, {NORM: (7, 8)}, {}, {NORM: (9, 9)}))


def test_a_run_that_goes_on_is_given_some_steps() -> None:
    later: list[dict[str, tuple[int, ...]]] = [{NORM: (7, 8)}, *[{}] * 7]
    assert not findings(table(MIXED, *later, finished=False))
    assert named(table(MIXED, *later, {}, finished=False)) == [("warning", 1, [NORM])]


@pytest.mark.parametrize(
    ("dtype", "by", "expected"),
    [
        ("float32", 1e-8, False),
        ("float32", 1e-3, True),
        ("bfloat16", 2**-7, False),
        ("bfloat16", 0.1, True),
    ],
)
def test_rounding(dtype: str, by: float, expected: bool) -> None:
    traits = {**TRAITS, NORM: VECTOR | {dtype}}
    run = table(MIXED, {NORM: (7, 8)}, traits=traits)
    for rank, values in enumerate([[1.0], [1.0 + by]]):
        run[rank].replicas[0].sampled = {Column(PARAMETER, NORM): values}
    assert bool(findings(run)) is expected


@pytest.mark.parametrize(
    ("fewer", "cause"),
    [
        (1, "a rank has left out a step, or made one more"),
        (
            2,
            (
                "the optimizer of rank 1 has made 2 steps fewer: it has left them out, or was made "
                "anew, without the state of the one before"
            ),
        ),
    ],
)
def test_a_rank_that_leaves_out_steps(fewer: int, cause: str) -> None:
    run = table(MIXED, {NORM: (7, 7)}, {NORM: (8, 7)})
    rows = run[1].replicas[0].rows
    rows[-1] = (replace(rows[-1][0], step=rows[-1][0].step - fewer), rows[-1][1])
    (found,) = findings(run)
    assert found.data["likely_cause"] == cause


@pytest.mark.parametrize("use", [PASSING, SUMMING, UNUSED])
def test_what_is_frozen(use: str) -> None:
    traits = {**TRAITS, ROUTER: RANDOM | {FROZEN}}
    run = table(MIXED, {ROUTER: (4, 5)}, use=use, traits=traits)
    assert named(run) == [("warning", 1, [ROUTER])]
    assert not findings(table(MIXED, {SHARD: (5, 6)}, use=use, traits=traits))


@pytest.mark.parametrize(
    ("other", "expected"),
    [(1.0 + 2**-22, "one bit (1) of element 30"), (1.0 + 2**-22 + 2**-23, "it was frozen")],
)
def test_a_bit_that_flips(other: float, expected: str) -> None:
    """Of each tenth element the value is on record."""
    run = table(MIXED, {ROUTER: (4, 5)}, traits={**TRAITS, ROUTER: RANDOM | {FROZEN}})
    for rank, value in enumerate([1.0, other]):
        one = run[rank].replicas[0]
        one.elements = [("float32", 40)] * 3
        one.sampled = {Column(PARAMETER, ROUTER): [0.5, 2.0, 3.0, value]}
    (found,) = findings(run)
    assert found.data["likely_cause"].startswith(expected)


ACROSS = {name: RANDOM | {ELSEWHERE} for name in TRAITS}
ALIKE = {NORM: (1, 1), SHARD: (2, 2), ROUTER: (4, 4)}


def test_gradients_that_are_summed_on_another_group_alone() -> None:
    run = table(ALIKE, {SHARD: (5, 6)}, use=UNUSED, traits=ACROSS)
    assert named(run) == [("warning", 1, [SHARD])]
    assert not findings(table(ALIKE, {SHARD: (5, 6)}, use=UNUSED, traits=ACROSS, busy=True))
    some = {**ACROSS, ROUTER: RANDOM}
    assert not findings(table(ALIKE, {SHARD: (5, 6)}, use=UNUSED, traits=some))
    assert named(table(ALIKE, {SHARD: (5, 6)}, use=SUMMING, traits=some))


def test_a_row_of_a_mesh_whose_gradients_nobody_sums() -> None:
    """Those of the other row are."""
    for desc, expected in (("mesh_dp", True), ("mesh_pp", False), ("team", False)):
        run = table(ALIKE, {SHARD: (5, 6)}, use=UNUSED)
        for rank in (0, 1):
            run[rank].has_group("1", [0, 1], desc="mesh_dp" if desc == "mesh_pp" else desc)
            run[rank].replicas[0].group = ("1", 0)
        other = Run(4)
        for rank in (0, 1):
            other.ranks[rank] = run[rank]
        for rank in (2, 3):
            other[rank].has_group("2", [2, 3], desc=desc)
            other[rank].steps(1, [5])
            other[rank].replicas[0].group = ("2", 0)
        other.finished = True
        assert bool(named(other)) is expected


def stepping(*steps: Sequence[int], alone: Sequence[int] = (), **flags: bool) -> Run:
    """A DDP model after these steps, on each rank; `alone`: the steps that all made alone."""
    run = Run(2)
    for number, values in enumerate([[0, 0], *steps]):
        for rank, value in enumerate(values):
            run[rank].steps(number, [value], key="0.0.abc")
            rows = run[rank].replicas[0].rows
            by_itself, apart = number in alone, any(one <= number for one in alone)
            given = {name: on and apart for name, on in flags.items()}
            row = replace(rows[-1][0], step=number, alone=by_itself, apart=apart, **given)
            rows[-1] = (row, rows[-1][1])
    run.finished = True
    return run


def test_a_model_that_is_brought_together_at_other_steps() -> None:
    (found,) = findings(stepping([1, 1], [2, 3], [4, 5], [6, 7], alone=[2]))
    assert (found.severity, found.data["step"], found.culprits) == ("error", 2, (0, 1))
    assert found.data["likely_cause"].startswith("DDP's forward was not called before this step")
    (found,) = findings(stepping([1, 1], [2, 3], [4, 5], alone=[2], no_sync=True))
    assert found.data["likely_cause"].startswith("this step was below no_sync()")


def test_a_model_that_is_never_brought_together() -> None:
    run = stepping([1, 2], [3, 4], alone=[1, 2])
    (found,) = findings(run)
    assert (found.severity, found.data["step"]) == ("error", 1)
    assert found.data["likely_cause"] == "DDP never reduced a gradient: always below no_sync()"
    run.finished = False
    assert not findings(run)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(stepping([1, 2], [3, 4], alone=[1, 2], busy=True), id="averages"),
        pytest.param(stepping([1, 1], [2, 3], [4, 5], alone=[2], busy=True), id="and goes on"),
        pytest.param(stepping([1, 1], [2, 3], [4, 5], alone=[2, 3]), id="local from a step on"),
        pytest.param(stepping([1, 1], [2, 3], [4, 4], alone=[2]), id="put back"),
        pytest.param(stepping([1, 2], alone=[1]), id="a single step"),
    ],
)
def test_ranks_that_step_alone_by_choice(run: Run) -> None:
    assert not findings(run)


@pytest.mark.parametrize(("elements", "expected"), [(1, True), (64, False)])
def test_models_that_are_averaged_at_the_end(elements: int, expected: bool) -> None:
    run = stepping([1, 2], [3, 4], alone=[1, 2])
    run.each(all_reduce(elements))
    assert bool(findings(run)) is expected


def test_a_parameter_that_one_rank_has_beside_the_others() -> None:
    """Tied elsewhere. What all have is compared."""
    run = Run(2)
    for rank, names in enumerate([["w"], ["w", "head"]]):
        columns = [Column(PARAMETER, name) for name in names]
        run[rank].steps(1, [rank, 7][: len(names)], key=f"0.0.{rank}", columns=columns)
    (found,) = findings(run)
    assert found.data["name"] == "w"


def test_an_experts_norm_begins_as_all_do() -> None:
    """The group exchanges tokens: a router is no expert's, for its elements are not all one."""
    assert not findings(table(MIXED, {NORM: (7, 8)}, use=EXCHANGING))
    assert named(table(MIXED, {ROUTER: (7, 8)}, use=EXCHANGING)) == [("warning", 1, [ROUTER])]


def test_an_axis_of_context_parallelism() -> None:
    """Equal seeds make shards on another axis equal at the start, and experts on any."""
    begin = {NORM: (1, 1), SHARD: (2, 2)}
    for axis, experts, expected in (("cp", False, True), ("tp", False, False), ("cp", True, False)):
        run = table(begin, {NORM: (5, 6), SHARD: (7, 8)})
        for rank in (0, 1):
            run[rank].replicas[0].axis = axis
            if experts:
                run[rank].has_group("1", [0, 1], desc="mesh_ep")
                run[rank].steps(1, [5], key="0.1")
                run[rank].replicas[1].group, run[rank].replicas[1].use = ("1", 0), EXCHANGING
                run[rank].replicas[1].traits = [RANDOM]
        assert named(run) == ([("warning", 1, [NORM, SHARD])] if expected else []), (axis, experts)


def evaluated(*by_rank: int) -> Run:
    """A model of which these ranks have evaluated this running mean."""
    run = Run(3)
    for rank, value in enumerate(by_rank):
        columns = [Column(BUFFER, "norm.running_mean")]
        run[rank].steps(8, [value], key="0.0evaluated.abc", columns=columns)
        run[rank].replicas[0].use = EVALUATED
    run.finished = True
    return run


def test_running_statistics_at_an_evaluation() -> None:
    (found,) = findings(evaluated(1, 2, 3))
    assert (found.severity, found.culprits) == ("warning", (0, 1, 2))
    assert (found.data["quantity"], found.data["name"]) == ("buffer", "norm.running_mean")
    assert found.message.startswith("all ranks")
    assert not findings(evaluated(1, 1, 1))
    assert not findings(evaluated(1, 2)), "one of the ranks evaluates nothing"
