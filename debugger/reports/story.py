"""The report as a story: which rule made each finding, and what has changed it since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..diagnosis.story import STEPS


def render(document: Mapping[str, Any]) -> str:
    """The text, a paragraph for each finding; the verdict has no place of its own in it."""
    found = document["findings"]
    lines = [line for one in found for line in _lines(one)]
    return "\n".join(lines or [f"nothing was found: {document['outcome']}"]) + "\n"


def _lines(finding: Mapping[str, Any]) -> Iterator[str]:
    yield f"{finding['severity']} {finding['kind']}: {finding['message']}"
    story = finding.get("story")
    if not isinstance(story, list) or not story:
        yield "  who made it is not on record: the report is of an older version"
        return
    yield f"  made by {story[0]}"
    width = max(map(len, story[1:]), default=0)
    for step in story[1:]:
        yield f"  then {step:{width}}  {STEPS.get(step, 'a step of another version')}"
