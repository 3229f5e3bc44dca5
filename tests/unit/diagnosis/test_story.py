"""A finding keeps which rule made it and what changed it since, by the declared list alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.diagnosis.limits import Candidate
from distdebug.diagnosis.story import STEPS, changed, rule, step

ROOT = Path(__file__).parents[3] / "debugger"
FOUND = Finding("stalled", "rank 1 stands still", culprits=(1,))
NO_STEPS = {
    "diagnosis/notices.py: _also",  # a rule's own: what its finding says besides
    "diagnosis/rules/divergence.py: _in_doubt",
    "diagnosis/rules/without_clock.py: unclear",
    "diagnosis/shared_findings.py: heard_at",  # called by steps and rules
    "diagnosis/story.py: changed",
    "foreign/judging.py: _host",  # a rule's own
    "inspection/inspect.py: _by_nccl",  # rules' own
    "inspection/inspect.py: _with_stacks",
    "plan/judgement.py: _warning",  # called by two that are
    "supervisor/on_the_spot.py: _told",  # calls one that is
    "supervisor/supervisor.py: _early_death",
    "testing/running.py: _allowed",  # leaves out what a test allows
}
"""Functions that take a finding and give one, and are no step."""


@rule
def found_by_us(found: Finding | None) -> Finding | None:
    return found


@step("exceptions")
def as_it_is(finding: Finding) -> Finding:
    return finding


@step("place")
def elsewhere(finding: Finding) -> Finding:
    return replace(finding, message="it stands elsewhere")


@step("cleanup")
def explained(candidate: Candidate) -> Candidate:
    return replace(candidate, finding=Finding("rank_exception", "it raised", culprits=(1,)))


def test_who_made_it_and_who_changed_it_is_told_in_order() -> None:
    found = found_by_us(FOUND)
    assert found is not None
    assert found.story == ("test_story.found_by_us",)
    assert elsewhere(as_it_is(found)).story == ("test_story.found_by_us", "place")


def test_a_finding_that_takes_the_place_of_another_one_has_its_story() -> None:
    found = found_by_us(FOUND)
    assert found is not None
    told = explained(Candidate(found)).finding
    assert (told.kind, told.story) == ("rank_exception", ("test_story.found_by_us", "cleanup"))
    assert changed("alike", told, told).story == told.story


def test_nothing_found_has_no_story() -> None:
    assert found_by_us(None) is None


def test_only_declared_steps_may_change_a_finding() -> None:
    with pytest.raises(ValueError, match="not among the declared steps"):
        step("as one likes")


def test_each_declared_step_is_some_function_s_and_all_that_change_findings_are_declared() -> None:
    used, undeclared = [], []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        used += re.findall(r"(?:step|changed)\(\"([^\"]+)\"", text)
        undeclared += [f"{path.relative_to(ROOT)}: {name}" for name in _changers(text)]
    assert set(used) == set(STEPS)
    assert set(undeclared) <= NO_STEPS


def _changers(text: str) -> Iterator[str]:
    """The functions that take a finding, give one, and are not decorated as a step."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef) or node.returns is None:
            continue
        gives = ast.unparse(node.returns)
        takes = [ast.unparse(one.annotation) for one in node.args.args if one.annotation]
        one = re.fullmatch(r"(Finding|Candidate)( \| None)?", gives)
        if one and any(re.fullmatch(r"(Finding|Candidate)( \| None)?", each) for each in takes):
            names = [ast.unparse(each) for each in node.decorator_list]
            if not any(re.match(r"(story\.)?step\(", each) for each in names):
                yield node.name
