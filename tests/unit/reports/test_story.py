"""`report --story`: who made a finding and who changed it, in words; of older reports too."""

from __future__ import annotations

from typing import Any

from distdebug.diagnosis.story import STEPS
from distdebug.reports import text

FOUND = {"severity": "error", "kind": "missing_rank", "message": "rank 1 has not come"}


def rendered(*findings: dict[str, Any]) -> list[str]:
    return text.story({"outcome": "missing_rank", "findings": findings}).splitlines()


def test_the_rule_and_each_step_has_a_line() -> None:
    assert rendered({**FOUND, "story": ["late_rank.missing_ranks", "lock", "stacks"]}) == [
        "error missing_rank: rank 1 has not come",
        "  made by late_rank.missing_ranks",
        f"  then lock    {STEPS['lock']}",
        f"  then stacks  {STEPS['stacks']}",
    ]


def test_a_step_of_another_version_is_named_all_the_same() -> None:
    assert "a step of another version" in rendered({**FOUND, "story": ["a.b", "unknown"]})[2]


def test_reports_of_before_have_no_story() -> None:
    """There a sentence stood under that name."""
    for before in ({}, {"story": None}, {"story": "rank 1 skipped one"}):
        assert "older version" in rendered({**FOUND, **before})[1]
    assert rendered() == ["nothing was found: missing_rank"]
