"""Decisions: what fixtures/decisions says of the branch at which rank 1 went another way.

The line that decides is marked in each program; with `correct` as its argument nothing is found.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

from .test_fixtures import FIXTURES
from .test_slips import busy

PROGRAMS = sorted((FIXTURES / "decisions").glob("*.py"))
SHORT = {"clock", "empty_batch", "exception", "in_package"}
OUTCOMES = {
    "clock": "True",
    "comprehension": "norm > 0: False",
    "conditional": "dense: False",
    "early_return": "True",
    "empty_batch": "True",
    "environment": "True",
    "exception": "raised ValueError at exception.py:",
    "generator_end": "False",
    "in_package": "did not call there",
    "loss": "True",
    "match_mode": "False",
    "missing_file": "False",
    "once_more": "True",
    "random_choice": "False",
    "set_order": "True",
    "short_circuit": "ready: False",
    "while_count": "False",
}
"""Of rank 1 at the line that decides."""
SHOWN = {"clock": " > ", "empty_batch": "0 == 0", "loss": "float32[] 9.5 > 2.0"}


def _programs() -> list[object]:
    marks = {one: [] if one.stem in SHORT else [pytest.mark.long] for one in PROGRAMS}
    return [pytest.param(one, id=one.stem, marks=marks[one]) for one in PROGRAMS]


@pytest.mark.parametrize("program", _programs())
def test_the_decision_is_named(zygote: Zygote, tmp_path: Path, program: Path) -> None:
    done = zygote.run(2, [str(program)], tmp_path, ["--why", "--strict"])
    lines = program.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# decides"))
    errors = [one for one in done.report["findings"] if "decision" in one]
    assert errors, done.explain()
    decision = errors[0]["decision"]
    sides = {rank: side for side in decision["sides"] for rank in side["ranks"]}
    assert decision["location"]["line"] == line, done.explain()
    assert sides[1]["outcome"].startswith(OUTCOMES[program.stem]), done.explain()
    assert sides[0]["outcome"] != sides[1]["outcome"]
    assert f"decided at {program.name}:{line}   " in done.stdout + done.stderr, done.explain()
    assert SHOWN.get(program.stem, "") in str(sides[1].get("shown")), done.explain()


@pytest.mark.parametrize("program", _programs())
def test_the_twin_has_no_finding(zygote: Zygote, tmp_path: Path, program: Path) -> None:
    words = [str(program), "correct"]
    done = zygote.run(2, words, tmp_path, ["--why", "--strict"])
    found = {one["kind"] for one in done.report["findings"]}
    assert (done.exit_code, found - ({"straggler"} if busy() else set())) == (0, set())
