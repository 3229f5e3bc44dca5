"""The report of what was taken for a replica of what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdebug.record.replicas import CONSTANT, EVALUATED, MATRIX, PARAMETER, PASSING
from distdebug.record.snapshot import Column
from distdebug.reports.replicas import lines
from tests.unit.diagnosis.builder import Run


def shown(run: Run) -> list[str]:
    return list(lines(run.snapshot().ranks))


def test_nothing_on_record() -> None:
    (line,) = shown(Run(2))
    assert "--check replicas" in line


@pytest.mark.parametrize(
    ("number", "known"),
    [
        ("0", "DDP"),
        ("-1", "the program reduces their gradients"),
        ("-2", "they are DTensors, replicated along this axis"),
        ("-5", "the program says so"),
    ],
)
def test_replicas(number: str, known: str) -> None:
    run = Run(2)
    for rank in range(2):
        columns = [Column(PARAMETER, name) for name in ("norm.weight", "norm.bias")]
        run[rank].steps(1, [1, 2], key=f"{number}.0.abc", columns=columns)
        run[rank].replicas[0].axis = "dp"
    assert shown(run) == [
        'axis dp (group "default_pg"): ranks 0,1; 1 moments on record',
        "  replicas: norm.weight, norm.bias",
        f"  known by: {known}",
    ]


def test_steps_without_each_other() -> None:
    run = Run(2)
    for rank in range(2):
        run[rank].steps(1, [rank], key="0.0.abc")
        rows = run[rank].replicas[0].rows
        rows[0] = (replace(rows[0][0], alone=True), rows[0][1])
    assert shown(run)[-1] == "  left alone from a step on: ranks stepped without each other"


def test_a_table() -> None:
    run = Run(2)
    traits = [frozenset({CONSTANT}), frozenset({MATRIX}), frozenset({CONSTANT, MATRIX})]
    for rank in range(2):
        columns = [Column(PARAMETER, name) for name in ("norm.weight", "up.weight", "lora.weight")]
        run[rank].steps(1, [1, rank, 3], key="-4.0passing.abc", columns=columns)
        one = run[rank].replicas[0]
        one.use, one.traits = PASSING, traits
    assert shown(run)[1:] == [
        "  known by: equal at the start on a group that passes activations",
        "  watched: norm.weight",
        "  left alone, for they began apart (shards, experts): up.weight",
        "  left alone, for equal seeds or zeros may have made them equal: lora.weight",
    ]


def test_evaluations() -> None:
    run = Run(2)
    for rank in range(2):
        run[rank].steps(1, [5], key="0.0evaluated.abc")
        run[rank].replicas[0].use = EVALUATED
    assert shown(run)[-1] == "  known by: DDP, when the model is evaluated"
