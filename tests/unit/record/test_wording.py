"""Long texts keep what they begin and end with."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from distdebug.rank.record.exception_text import titled
from distdebug.record.wording import CAUSES, MOST_TEXT, RankState, printable

LONG = "RuntimeError: one of these reasons: " + "a reason, " * 1000 + "the parameter is head.bias"


def test_a_text_is_cut_in_its_middle() -> None:
    cut = printable(LONG)
    assert len(cut) == MOST_TEXT
    assert cut.startswith("RuntimeError: one of")
    assert cut.endswith("head.bias")
    assert cut.count("...") == 1


def test_one_that_fits_is_left_alone() -> None:
    text = "x" * MOST_TEXT
    assert printable(text) == text
    assert printable("four", 4) == "four"


def test_of_an_exception_and_its_cause_a_record_has_both_ends() -> None:
    text = titled(ValueError(LONG))
    assert len(text) < 2000
    assert text.startswith("ValueError: RuntimeError: one of")
    assert text.endswith("head.bias")


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
        if path.name != "wording.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in WORDS
    ]
    assert found == []
