"""Of the reports of all ranks one is made: the cause first, each traceback once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.record.wording import ranges
from distdebug.testing.outcome import Merger, sections
from distdebug.testing.running import END, TEARDOWN, RankRun


def failed(line: int, message: str, **about: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    place = {"path": "test_it.py", "lineno": line, "message": message}
    entry = {
        "type": "ReprEntry",
        "data": {
            "lines": [">   assert a == b", f"E   {message}"],
            "reprfuncargs": None,
            "reprlocals": None,
            "reprfileloc": {**place, "message": message.partition(":")[0]},
            "style": "long",
        },
    }
    traceback = {"reprentries": [entry], "extraline": None, "style": "long"}
    longrepr = {"reprcrash": place, "reprtraceback": traceback, "sections": [], "chain": None}
    return outcome("failed", longrepr), about


def outcome(name: str, longrepr: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "nodeid": "test_it.py::test",
        "location": ["test_it.py", 3, "test"],
        "keywords": {},
        "outcome": name,
        "longrepr": longrepr,
        "when": "call",
        "user_properties": [],
        "sections": [],
        "duration": 0.1,
        "$report_type": "TestReport",
        **more,
    }


class Judge:
    """Knows a finding, and writes no report."""

    def __init__(self, finding: Finding | None = None) -> None:
        self.finding = finding

    def report(self, nodeid: str, outcome: str) -> str:
        return "the text of the finding"


def a_test(*reports: Any, finding: Finding | None = None, reason: str = "") -> Any:
    ranks = []
    for number, found in enumerate(reports):
        rank = RankRun(number, channel=SimpleNamespace())  # type: ignore[arg-type]
        rank.at = TEARDOWN
        if found is not None:
            rank.reports["call"] = found
        ranks.append(rank)
    return SimpleNamespace(
        ranks=ranks,
        judge=Judge(finding),
        reason=reason,
        stacks="the stacks",
        nodeid="test_it.py::test",
        place=Path("/nowhere"),
        ending=lambda _: "SIGKILL",
    )


def merged(test: Any, pytestconfig: pytest.Config) -> Any:
    return Merger(test, pytestconfig, ("test_it.py", 4)).of("call")


PASSED = (outcome("passed"), {})
SKIPPED = (outcome("skipped", ["test_it.py", 4, "Skipped: no"]), {})


def test_ranks_in_words() -> None:
    assert ranges([3]) == "rank 3"
    assert ranges([0, 1]) == "ranks 0,1"
    assert ranges([0, 1, 2, 5, 7, 8, 9, 10]) == "ranks 0-2,5,7-10"


def test_all_pass(pytestconfig: pytest.Config) -> None:
    assert merged(a_test(PASSED, PASSED), pytestconfig).outcome == "passed"


def test_all_skip(pytestconfig: pytest.Config) -> None:
    found = merged(a_test(SKIPPED, SKIPPED), pytestconfig)
    assert (found.outcome, found.longrepr) == ("skipped", ("test_it.py", 4, "Skipped: no"))


def test_some_skip(pytestconfig: pytest.Config) -> None:
    found = merged(a_test(SKIPPED, PASSED, SKIPPED), pytestconfig)
    assert found.outcome == "failed"
    assert "ranks 0,2 skipped the test (Skipped: no), rank 1 did not" in str(found.longrepr)


def test_one_place_with_two_messages(pytestconfig: pytest.Config) -> None:
    test = a_test(
        failed(7, "AssertionError: at 0x7f00aa", time_ns=1),
        failed(7, "AssertionError: at 0x7f00bb", time_ns=2),
        failed(7, "AssertionError: other", time_ns=3),
    )
    found = merged(test, pytestconfig)
    text = str(found.longrepr)
    assert "ranks 0-2 failed at the same line; this is of ranks 0,1" in text
    assert text.count("assert a == b") == 1
    assert "rank 2: AssertionError: other" in text
    assert found.longrepr.reprcrash.lineno == 7
    assert found.longrepr.reprcrash.message.startswith("ranks 0-2: AssertionError")


def test_the_first_by_time_comes_first(pytestconfig: pytest.Config) -> None:
    test = a_test(failed(9, "KeyError: late", time_ns=9), failed(7, "ValueError: x", time_ns=2))
    text = str(merged(test, pytestconfig).longrepr)
    assert text.index("rank 1:") < text.index("rank 0:")


def test_consequences_are_folded(pytestconfig: pytest.Config) -> None:
    test = a_test(
        failed(8, "DistError: told", told=True, finding="rank_exception"),
        failed(7, "ValueError: x", communication=False),
        failed(8, "RuntimeError: connection closed", communication=True),
        None,
    )
    text = str(merged(test, pytestconfig).longrepr)
    assert "ValueError: x" in text
    assert "told" not in text
    assert "connection closed" not in text
    assert "ranks 0,2,3 waited and were ended by this" in text


def test_lost_connections_without_another_cause_are_shown(pytestconfig: pytest.Config) -> None:
    lost = failed(8, "RuntimeError: connection closed", communication=True)
    found = merged(a_test(lost, PASSED), pytestconfig)
    assert found.outcome == "failed"
    assert "connection closed" in str(found.longrepr)


def test_a_finding_comes_first_and_folds_who_was_told(pytestconfig: pytest.Config) -> None:
    finding = Finding("dtype_mismatch", "ranks disagree", (1,), (0,))
    told = failed(8, "MismatchError: told", told=True, finding="dtype_mismatch")
    text = str(merged(a_test(told, told, finding=finding), pytestconfig).longrepr)
    assert text.strip() == "the text of the finding"


def test_a_finding_fails_a_test_that_passed_in_all_ranks(pytestconfig: pytest.Config) -> None:
    finding = Finding("dtype_mismatch", "ranks disagree", (1,), (0,))
    found = merged(a_test(PASSED, PASSED, finding=finding), pytestconfig)
    assert found.outcome == "failed"
    assert found.longrepr.reprcrash.message == "dtype_mismatch: ranks disagree"


def test_a_timeout_shows_the_stacks(pytestconfig: pytest.Config) -> None:
    text = str(merged(a_test(None, None, reason="it took too long"), pytestconfig).longrepr)
    assert text.startswith("it took too long\n")
    assert "where the ranks stood:\nthe stacks" in text


def test_who_died_is_told_once(pytestconfig: pytest.Config) -> None:
    test = a_test(PASSED, None)
    test.ranks[1].at = END
    merger = Merger(test, pytestconfig, ("test_it.py", 4))
    found = merger.of("call")
    assert "rank 1 ended in the middle of the test: SIGKILL" in str(found.longrepr)
    assert merger.of("teardown").outcome == "passed"


@pytest.mark.parametrize("strict", [False, True])
def test_an_expected_failure_of_one_rank(pytestconfig: pytest.Config, strict: bool) -> None:
    expected = (outcome("skipped", failed(7, "ValueError: x")[0]["longrepr"], wasxfail="why"), {})
    other = (outcome("failed", "[XPASS(strict)] why"), {}) if strict else PASSED
    found = merged(a_test(expected, other), pytestconfig)
    assert (found.outcome, found.wasxfail) == ("skipped", "why")


def test_an_expected_failure_excuses_no_other(pytestconfig: pytest.Config) -> None:
    expected = (outcome("skipped", failed(7, "ValueError: x")[0]["longrepr"], wasxfail="why"), {})
    found = merged(a_test(expected, failed(9, "KeyError: y")), pytestconfig)
    assert found.outcome == "failed"


def test_escape_sequences_of_ranks_are_harmless(pytestconfig: pytest.Config) -> None:
    text = str(merged(a_test(failed(7, "ValueError: \x1b[2Jgone")), pytestconfig).longrepr)
    assert "\x1b" not in text
    assert "\\x1b[2Jgone" in text


def test_the_same_output_of_several_ranks_once(tmp_path: Path) -> None:
    test = a_test(PASSED, PASSED, PASSED)
    test.place = tmp_path
    (tmp_path / "run" / "logs").mkdir(parents=True)
    for rank, words in enumerate(("a\n", "a\n", "b\x07\n")):
        (tmp_path / "run" / "logs" / f"{rank}.out").write_text(words)
    assert sections(test, captured=True) == [
        ("Captured stdout of ranks 0,1", "a\n"),
        ("Captured stdout of rank 2", "b\\x07\n"),
    ]
    assert sections(test, captured=False) == []


def a_subtest(part: int, report: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    data, about = report
    context = {"msg": "part", "kwargs": {"i": str(part)}}
    return {**data, "_report_type": "SubTestReport", "_subtest.context": context}, about


def test_a_subtest_fails_the_test_though_the_body_passed(pytestconfig: pytest.Config) -> None:
    test = a_test(PASSED, PASSED, PASSED)
    for rank in (0, 2):
        test.ranks[rank].subtests.append(a_subtest(1, failed(7, "AssertionError: x", time_ns=rank)))
    test.ranks[2].subtests.append(a_subtest(4, failed(7, "AssertionError: x", time_ns=9)))
    merger = Merger(test, pytestconfig, ("test_it.py", 4))
    found = merger.of("call")
    text = str(found.longrepr)
    assert found.outcome == "failed"
    assert "ranks 0,2, subtest [part] (i=1):" in text
    assert "rank 2, subtest [part] (i=4):" in text
    assert text.count("assert a == b") == 2
    assert found.longrepr.reprcrash.message.startswith("ranks 0,2, subtest [part] (i=1): Assert")
    assert merger.of("teardown").outcome == "passed", "it is told once"


def test_a_subtest_that_was_told_of_a_finding_is_its_consequence(
    pytestconfig: pytest.Config,
) -> None:
    finding = Finding("dtype_mismatch", "ranks disagree", (1,), (0,))
    test = a_test(PASSED, PASSED, finding=finding)
    told = failed(7, "DistError: told", told=True, finding="dtype_mismatch")
    test.ranks[0].subtests.append(a_subtest(1, told))
    lost = failed(7, "RuntimeError: connection closed", communication=True)
    test.ranks[1].subtests.append(a_subtest(1, lost))
    text = str(merged(test, pytestconfig).longrepr)
    assert "the text of the finding" in text
    assert "subtest" not in text
