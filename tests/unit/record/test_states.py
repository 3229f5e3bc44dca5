"""The words for what a rank does stand in one file."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from distdebug.record.states import CAUSES, RankState

ROOT = Path(__file__).resolve().parents[3]
WORDS = {state.value for state in RankState if " " in state.value}


def test_a_state_is_its_words_wherever_it_is_printed() -> None:
    state = RankState.WAITS_FOR_LOCK
    assert f"{state}" == str(state) == "rank 1: waits for a lock".removeprefix("rank 1: ")
    assert json.loads(json.dumps({"state": state}))["state"] == state
    assert set(CAUSES.values()) < set(RankState)


def test_nobody_else_writes_these_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for folder in ("debugger", "tui")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "states.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in WORDS
    ]
    assert found == []
