"""Renders a report document as junit.xml: one suite, one case for the run and one for each rank
(of a plan: for each class of ranks that do the same)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import Any

from . import injections, planned, table, text

_SUITE = "distdebug"
_LEVEL = 2
"""The depth of a case, below the two elements that hold all."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(document: Mapping[str, Any]) -> str:
    """The report as JUnit XML.

    The case of the run fails when the run did (`error` where the tool itself failed). The case of
    a rank fails when the rank is a culprit of an error.
    """
    return "".join(pieces(document))


def pieces(document: Mapping[str, Any]) -> Iterator[str]:
    """The same bit by bit: as a whole the cases of 16,384 ranks take 13 MB. They are made twice,
    since how many there are stands before them."""
    tests = failures = errors = 0
    for case in _cases(document):
        tests += 1
        failures += case.find("failure") is not None
        errors += case.find("error") is not None
    counts = {
        "name": _SUITE,
        "tests": str(tests),
        "failures": str(failures),
        "errors": str(errors),
        "skipped": "0",
        "time": _time_s(document),
    }
    suite = _text(ElementTree.Element("testsuite", counts))
    root = _text(ElementTree.Element("testsuites", {key: counts[key] for key in counts}))
    yield '<?xml version="1.0" encoding="utf-8"?>\n'
    yield f"{root.removesuffix(' />')}>\n  {suite.removesuffix(' />')}>\n"
    for case in _cases(document):
        ElementTree.indent(case, level=_LEVEL)
        yield f"{'  ' * _LEVEL}{_text(case)}\n"
    yield "  </testsuite>\n</testsuites>\n"


def _cases(document: Mapping[str, Any]) -> Iterator[ElementTree.Element]:
    run = _run_case(document)
    run.set("time", _time_s(document))
    yield run
    names = {*document["ranks"], *map(str, range(document["world_size"]))}
    for finding in document["findings"]:
        names |= {str(rank) for rank in finding["culprits"]}
    alone = {int(name) for name in names}
    if planned.is_plan(document):
        guilty = {rank for one in document["findings"] for rank in one["culprits"]}
        for row in document.get("classes", ()):
            same = [rank for rank in row["ranks"] if rank not in guilty]
            alone -= set(same)
            if same:
                # Ranks of a plan that do the same, and are to blame for nothing.
                case = _case(planned.name_of({**row, "ranks": same, "as": same[0]}))
                known = document["ranks"].get(str(same[0]))
                if known is not None:
                    _add(case, "system-out", _place(known))
                yield case
    for rank in sorted(alone):
        yield _rank_case(document, rank)


def _time_s(document: Mapping[str, Any]) -> str:
    return f"{document['duration_s']:.3f}"


def _text(element: ElementTree.Element) -> str:
    return ElementTree.tostring(element, encoding="unicode")


def _run_case(document: Mapping[str, Any]) -> ElementTree.Element:
    case = _case("run")
    outcome = document["outcome"]
    whole = text.render(document, width=0)
    if document["exit_code"] == 0:
        _add(case, "system-out", whole)
        return case
    verdict = text.verdict_of(document)
    message = verdict["message"] if verdict else f"the run ended as {outcome}"
    if injections.failed_by_faults(document):
        message = injections.unmade(document)[0]
    tag = "error" if outcome == "tool_error" else "failure"
    _add(case, tag, whole, type=outcome, message=message)
    return case


def _rank_case(document: Mapping[str, Any], rank: int) -> ElementTree.Element:
    case = _case(f"rank {rank}")
    guilty = [
        finding
        for finding in document["findings"]
        if finding["severity"] == "error" and rank in finding["culprits"]
    ]
    if guilty:
        first = guilty[0]
        lines = [f"{one['title']}  {one['message']}" for one in guilty]
        lines += [f"injected: {one['injected']}" for one in guilty if one.get("injected")]
        where = first["ranks"].get(str(rank))
        if where is not None:
            lines += [_place(where), *where["stack"]]
            if where["location"]:  # as pytest's xunit1 does: CI systems link to the line
                case.set("file", _xml(where["location"]["file"]))
                case.set("line", str(where["location"]["line"]))
        _add(case, "failure", "\n".join(lines), type=first["kind"], message=first["message"])
    known = document["ranks"].get(str(rank))
    if known is not None:
        _add(case, "system-out", _place(known))
    return case


def _place(evidence: Mapping[str, Any]) -> str:
    place = evidence["location"]
    at = f" at {place['file']}:{place['line']} in {place['function']}" if place else ""
    return f"{table.doing(evidence)}{at}"


def _case(name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", {"classname": _SUITE, "name": name, "time": "0"})


def _add(parent: ElementTree.Element, tag: str, body: str, **attributes: str) -> None:
    safe = {key: _xml(value) for key, value in attributes.items()}
    ElementTree.SubElement(parent, tag, safe).text = _xml(body)


def _xml(value: str) -> str:
    """XML 1.0 has no way to write most control characters, not even escaped."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value)
