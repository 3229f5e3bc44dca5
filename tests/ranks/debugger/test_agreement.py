"""At DETAIL all ranks raise one and the same error before a wrong call does anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "agreement.py"
RANKS = 3
SIDES = "rank 1 calls {}; ranks 0,2 call {}"
SHORTER = (
    "shape_mismatch",
    SIDES.format("all_reduce(sum, float32[3])", "all_reduce(sum, float32[4])"),
)
# By way: the finding's kind, what its text must hold, where it is raised (by default: the call).
WRONG = {
    "kind": (
        "op_mismatch",
        SIDES.format("broadcast(src=0, float32[4])", "all_reduce(sum, float32[4])"),
    ),
    "reduce_op": (
        "reduce_op_mismatch",
        SIDES.format("all_reduce(max, float32[4])", "all_reduce(sum, float32[4])"),
    ),
    "root": (
        "root_mismatch",
        SIDES.format("broadcast(src=1, float32[4])", "broadcast(src=0, float32[4])"),
    ),
    "dtype_of_equal_bytes": (
        "dtype_mismatch",
        SIDES.format("all_reduce(sum, int32[4])", "all_reduce(sum, float32[4])"),
    ),
    "count": SHORTER,
    "shape": (
        "shape_mismatch",
        SIDES.format("all_reduce(sum, float32[2,2])", "all_reduce(sum, float32[4])"),
    ),
    "splits": ("split_mismatch", "rank 0 sends 2 elements to rank 1, which expects 1, in all_to"),
    "asynchronous": SHORTER,
    "raised_by_the_call_itself": SHORTER,
    "coalesced": ("shape_mismatch", "rank 1 calls all_reduce_coalesced("),
    "objects": ("root_mismatch", SIDES.format("broadcast(src=1, int64[1])", "broadcast(src=0, i")),
    "in_a_thread": SHORTER,
}
FINE = {
    "a_message_before_the_others_come",
    "messages_crossing",
    "messages_from_any",
    "burst_into_any_source",
    "from_one_rank_then_from_any",
    "refused_by_gloo_and_sent_again",
    "refused_by_gloo_in_the_call_itself",
    "all_alike",
}
MESSAGES = {
    "message_too_large": "float32[4] to rank 1, which receives float32[3]: 4 elements against 3",
    "message_too_small": "float32[3] to rank 1, which receives float32[4]: 3 elements against 4",
    "message_of_another_dtype": "float32[4] to rank 1, which receives int32[4]: other dtype",
}


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory, torch_loaded: TorchLoaded
) -> dict[str, list[dict[str, Any]]]:
    """By way: what each rank printed."""
    run = ranks.forked(torch_loaded, tmp_path_factory.mktemp("agreement"), RANKS, SCRIPT)
    run.extra = {"DISTDEBUG_LEVEL": "DETAIL"}
    assert run.run() == 0, run.explain()
    found: dict[str, list[dict[str, Any]]] = {}
    for rank in range(RANKS):
        for line in run.log(rank).splitlines():
            row = json.loads(line)
            assert row["rank"] == rank
            found.setdefault(row["way"], []).append(row)
    assert set(found) == {*WRONG, *FINE, *MESSAGES, "of_a_pair"}
    return found


@pytest.mark.parametrize("way", WRONG)
def test_all_raise_the_same(told: dict[str, list[dict[str, Any]]], way: str) -> None:
    kind, text = WRONG[way]
    rows = told[way]
    assert len({row["said"] for row in rows}) == 1, rows
    assert rows[0]["said"].startswith(f"MismatchError: [distdebug] {kind}: "), rows
    assert text in rows[0]["said"]
    for row in rows:
        assert row["t"] == [row["rank"]] * 4, "something was sent"
        assert any(word in row["line"] for word in ("dist.", "work.wait()")), row


def test_on_a_sub_group(told: dict[str, list[dict[str, Any]]]) -> None:
    """The third rank is told nothing, and goes on."""
    zero, one, two = told["of_a_pair"]
    assert two["said"] == "fine"
    assert zero["said"] == one["said"]
    assert "shape_mismatch" in zero["said"]
    assert '#0 of group "the pair" (2 ranks)' in zero["said"]


@pytest.mark.parametrize("way", MESSAGES)
def test_messages(told: dict[str, list[dict[str, Any]]], way: str) -> None:
    """Both sides raise, and the third rank is not troubled."""
    zero, one, two = told[way]
    assert two["said"] == "fine"
    text = f"MismatchError: [distdebug] p2p_mismatch: rank 0 sends {MESSAGES[way]}"
    assert [zero["said"], one["said"]] == [text, text]
    assert (zero["t"], one["t"]) == ([0.0] * 4, [1.0] * 4), "something was sent"
    assert "send" in zero["line"]
    assert "recv" in one["line"]


@pytest.mark.parametrize("way", sorted(FINE))
def test_goes_on(told: dict[str, list[dict[str, Any]]], way: str) -> None:
    for row in told[way]:
        assert row["said"] == "fine", row
        assert row["t"][2:] == [3.0, 3.0], row
