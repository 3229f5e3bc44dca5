"""Tests in ranks that pass: fixtures, parameters, skips, isolation, as in any test."""

from __future__ import annotations

import pytest

from tests.support import plugin_sessions
from tests.support.plugin_sessions import Session

CONFTEST = """
import pytest

@pytest.fixture
def conftest_value():
    return "from conftest"
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("passing")
    plugin_sessions.write(folder, "passing.py", conftest=CONFTEST)
    return plugin_sessions.run(folder, "-rA")


pytestmark = pytest.mark.timeout(600)


def test_all_of_them_pass(session: Session) -> None:
    assert session.exit_code == 0, session.output
    assert set(session.outcomes.values()) == {"passed", "skipped"}, session.output


def test_lists_parametrise(session: Session) -> None:
    names = [name for name in session.outcomes if name.startswith("test_grid")]
    assert sorted(names) == [
        "test_grid[1ranks-gloo]",
        "test_grid[1ranks-tcp]",
        "test_grid[2ranks-gloo]",
        "test_grid[2ranks-tcp]",
    ]


def test_values_within_param_are_named_as_bare_ones(session: Session) -> None:
    names = {name for name in session.outcomes if name.startswith("test_values_within_param")}
    assert names == {"test_values_within_param[1ranks]", "test_values_within_param[a_pair]"}


def test_skipped_in_all_ranks_is_skipped_and_a_known_bug_too(session: Session) -> None:
    skipped = {name for name, outcome in session.outcomes.items() if outcome == "skipped"}
    assert skipped == {
        "test_skipped_by_all",
        "test_expected_failure",
        "test_needs_gpus",
        "test_needs_gpus_in_ranks",
    }
    assert "XFAIL test_it.py::test_expected_failure - a known bug" in session.output
    assert "needs 999 GPUs; none can be used here" in session.output


def test_what_a_test_leaves_behind_is_gone(session: Session) -> None:
    assert session.outcomes["test_finds_nothing_of_that"] == "passed"
    assert not plugin_sessions.processes("1000.25"), "a process that a rank started is left"


def test_properties_reach_junit(session: Session) -> None:
    for line in (
        '<property name="same" value="x"',
        '<property name="own of rank 0" value="0"',
        '<property name="own of rank 1" value="1"',
    ):
        assert line in session.junit
