"""What one writes the other reads: the notes and files that ranks and readers share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from debugger.record.notes import OwnFindingNote, Verdict

NOTE = OwnFindingNote("op_mismatch", (2,), (0, 1), ("default_pg", 0), 7, "ranks disagree")


def test_a_finding_of_a_rank_comes_back_as_it_was() -> None:
    for note in (NOTE, OwnFindingNote("p2p_mismatch", (1,), (), ("a", 3), None)):
        assert OwnFindingNote.read(json.loads(json.dumps(note.data()))) == note


@pytest.mark.parametrize(
    "change",
    [
        {"finding": "practical_joke"},
        {"culprits": []},
        {"culprits": 3},
        {"group": "default_pg"},
        {"group": ["default_pg", "first"]},
        {"seq": "seven"},
    ],
)
def test_of_a_damaged_one_nothing_is_believed(change: dict[str, Any]) -> None:
    assert OwnFindingNote.read({**NOTE.data(), **change}) is None
    assert OwnFindingNote.read({}) is None


def test_a_verdict_comes_back_as_it_was() -> None:
    for verdict in (Verdict("deadlock", "ranks wait"), Verdict("missing_rank", "late", "gil_held")):
        assert Verdict.of_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    for damaged in (None, [], {}, {"kind": "deadlock"}, {"text": "x"}):
        assert Verdict.of_json(damaged) is None
