"""Gradients that a program has forgotten to sum are warned of; what parts by design is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

SCRIPT = Path(__file__).resolve().parents[1] / "ranks" / "scripts" / "apart_by_design.py"
CHECK = ["--check", "replicas"]


@pytest.mark.parametrize(
    ("name", "ranks", "culprits", "step"),
    [
        pytest.param("forgotten", 2, [0, 1], 1, marks=pytest.mark.long),
        pytest.param("forgotten_in_one_tensor", 3, [0, 1, 2], 3, marks=pytest.mark.long),
        ("forgotten_in_groups_of_two", 4, [0, 1, 2, 3], 1),
    ],
)
def test_forgotten(
    name: str, ranks: int, culprits: list[int], step: int, tmp_path: Path, zygote: Zygote
) -> None:
    done = zygote.run(ranks, [str(SCRIPT), name], tmp_path, CHECK)
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    (found,) = done.report["findings"]
    assert (found["kind"], found["severity"], found["proven"]) == ("divergence", "warning", False)
    assert found["culprits"] == culprits, done.explain()
    assert (found["quantity"], found["name"], found["step"]) == ("parameter", "last.weight", step)
    assert "last.weight, last.bias; no rank's gradient of it was reduced" in found["message"]
    assert "while those of norm.weight, norm.bias were" in found["message"]


DESIGNS = {
    "all_norms": 2,
    "local_sgd": 2,
    "outer_steps": 2,
    "federated_but_norms": 2,
    "averaged_now_and_then": 2,
    "own_average": 2,
    "ensemble": 2,
    "heads_of_their_own": 2,
    "several_discriminators": 2,
    "experts": 2,
    "experts_of_gathered_tokens": 2,
    "experts_among_others": 4,
    "stages": 2,
    "parameter_server": 2,
    "shared_memory": 2,
    "weights_in_place_of_gradients": 2,
    "seeded_by_rank": 2,
    "pushed_now_and_then": 2,
}


@pytest.mark.long
@pytest.mark.parametrize("name", DESIGNS)
def test_by_design(name: str, tmp_path: Path, zygote: Zygote) -> None:
    done = zygote.run(DESIGNS[name], [str(SCRIPT), name], tmp_path, CHECK)
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
