"""`distdebug.precheck()`: what is found within it, what the ranks do at its edges, and that nothing
of it is left behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import distdebug
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded
from tests.support.worlds import Worlds

SCRIPTS = Path(__file__).parents[1] / "scripts"
RANKS = 3
MISMATCH = "[distdebug] shape_mismatch: "
SIDES = "rank 1 calls all_reduce(sum, float32[2,2]); ranks 0,2 call all_reduce(sum, float32[4])"


@pytest.fixture(scope="module")
def said(
    tmp_path_factory: pytest.TempPathFactory, torch_loaded: TorchLoaded
) -> dict[str, list[Any]]:
    """By way: what it came to on each rank."""
    run = ranks.forked(
        torch_loaded, tmp_path_factory.mktemp("precheck"), RANKS, SCRIPTS / "precheck.py"
    )
    assert run.run() == 0, run.explain()
    found: dict[str, list[Any]] = {}
    for rank in range(RANKS):
        for row in map(json.loads, run.log(rank).splitlines()):
            found.setdefault(row["way"], []).append(row["said"])
    assert {len(rows) for rows in found.values()} == {RANKS}
    assert "goes on without agreement" in run.log(1, "err"), run.explain()
    return found


def is_refused(text: str) -> bool:
    """All ranks are told of both sides, and nothing was sent."""
    return (
        text.startswith(MISMATCH) and SIDES in text and text.endswith("sent [1.0, 1.0, 1.0, 1.0]")
    )


def test_a_mismatch_is_an_error_inside_and_none_outside(said: dict[str, list[Any]]) -> None:
    assert said["outside"] == ["computed"] * RANKS
    assert all(map(is_refused, said["inside"])), said["inside"]
    assert len(set(said["inside"])) == 1


def test_what_the_run_had_is_back_behind_it(said: dict[str, list[Any]]) -> None:
    assert said["behind"] == [["computed", "computed"]] * RANKS


def test_the_outer_one_goes_on_when_the_inner_one_ends(said: dict[str, list[Any]]) -> None:
    assert all(map(is_refused, said["nested"])), said["nested"]


def test_the_second_and_the_third_one(said: dict[str, list[Any]]) -> None:
    for *sums, last in said["again"]:
        assert sums == [float(RANKS)] * 4
        assert is_refused(last), last


def test_calls_in_flight_at_its_end_are_not_overtaken(said: dict[str, list[Any]]) -> None:
    assert said["in_flight"] == [[3.0, 30.0, 300.0, 3000.0]] * RANKS


def test_a_rank_that_leaves_later_holds_nobody_up(said: dict[str, list[Any]]) -> None:
    assert said["longer_on_one_rank"] == [[3.0, 3.0, "computed"]] * RANKS


def test_a_call_that_one_rank_skips_is_found(said: dict[str, list[Any]]) -> None:
    (text,) = set(said["skipped_by_one_rank"])
    assert text.startswith("[distdebug] op_mismatch: ")
    assert "rank 1 calls broadcast(src=0, float32[4]); ranks 0,2 call all_reduce(sum" in text


def test_a_rank_that_enters_earlier_goes_on(said: dict[str, list[Any]]) -> None:
    assert said["entered_early_by_one_rank"] == [[3.0] * 3] * RANKS


def test_without_the_layer_it_does_nothing() -> None:
    with distdebug.precheck(), distdebug.precheck():
        pass


@pytest.mark.parametrize(
    ("way", "name", "moment"),
    [
        ("parted", "1.weight", "before the first optimizer step of a precheck"),
        ("parted_by_hand", "1.weight", "before the first optimizer step of a precheck"),
        ("bit_flip", "0.bias", "after optimizer step 2 of a precheck"),
        ("alike", None, None),
        ("on_their_own", None, None),
    ],
)
def test_replicas_that_were_there_before(
    way: str, name: str | None, moment: str | None, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    """The rank whose replica has parted is named, and nothing is said of models whose ranks step on
    their own by right."""
    script = SCRIPTS / "precheck_training.py"
    run = Worlds(torch_loaded).run(tmp_path / "run", RANKS, script, {"WAY": way})
    if name is None:
        assert (run.findings, set(run.codes.values())) == ([], {0}), run.explain()
        return
    assert run.verdict is not None, run.explain()
    assert (run.verdict.kind, run.verdict.culprits) == ("divergence", (1,)), run.explain()
    assert f'parameter "{name}" is the first that does' in run.verdict.message, run.explain()
    assert moment in run.verdict.message, run.explain()
