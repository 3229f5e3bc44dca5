"""junit.xml: one case for the run and one for each rank, valid whatever the ranks say."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from distdebug.diagnosis.findings import Finding
from distdebug.reports import junit
from tests.unit.diagnosis.builder import Run, all_reduce

from .documents import at, report


def parsed(document: dict[str, object]) -> ElementTree.Element:
    suite = ElementTree.fromstring(junit.render(document).encode()).find("testsuite")
    assert suite is not None
    return suite


def test_the_culprit_and_the_run_fail() -> None:
    run = Run(3)
    run.each(all_reduce(8))
    finding = Finding(
        "rank_died", "rank 1 was killed", (1,), (0, 2), ranks={1: at("killed by SIGKILL", None, 9)}
    )
    suite = parsed(report([finding], ranks=run.snapshot().ranks, world_size=4))
    assert suite.attrib == {
        "name": "distdebug",
        "tests": "5",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
        "time": "12.100",
    }
    cases = {case.get("name"): case.find("failure") for case in suite}
    assert list(cases) == ["run", "rank 0", "rank 1", "rank 2", "rank 3"]
    assert [name for name, failure in cases.items() if failure is not None] == ["run", "rank 1"]
    failure = cases["rank 1"]
    assert failure is not None
    assert failure.attrib == {"type": "rank_died", "message": "rank 1 was killed"}
    assert failure.text == (
        "RANK DIED  rank 1 was killed\nkilled by SIGKILL at /home/u/train.py:9 in step"
    )
    assert suite[2].attrib.items() >= {"file": "/home/u/train.py", "line": "9"}.items()
    assert [case.get("file") for case in suite].count(None) == 4
    whole = cases["run"]
    assert whole is not None
    assert (whole.text or "").startswith(
        "RANK DIED  rank 1 was killed\n  ranks 0,2   run user code"
    )


def test_a_fine_run_has_no_failure_and_a_tool_error_is_an_error() -> None:
    suite = parsed(report(world_size=2))
    assert (suite.get("failures"), suite.get("errors"), len(suite)) == ("0", "0", 3)
    suite = parsed(report(world_size=2, outcome="tool_error", exit_code=96))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_nasty_characters_stay_valid_xml() -> None:
    nasty = 'a<b> & "c" ]]> \x00\x1b[31m \ufffe \uffff \ud800 \x85 é 🏖'
    finding = Finding("rank_exception", nasty, (0,), ranks={0: at(nasty, nasty, 1, nasty, nasty)})
    suite = parsed(report([finding], notes=[nasty], world_size=1))
    message = suite[0][0].get("message")
    assert message is not None
    assert message.startswith('a<b> & "c" ]]> \\x00\\x1b[31m')
    assert message.endswith("é 🏖")
