"""Tests in ranks that fail: what is said, and that it is said in time."""

from __future__ import annotations

import pytest

from tests.support import plugin_sessions
from tests.support.plugin_sessions import PROJECTS, Session

pytestmark = pytest.mark.timeout(600)
LINES = (PROJECTS / "failing.py").read_text().splitlines()
SOON_S = 60.0
"""Far below the timeout of the tests that end at a finding, and enough for a crowded machine."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("failing")
    plugin_sessions.write(folder, "failing.py")
    return plugin_sessions.run(folder)


def line_of(end: str) -> int:
    return next(number for number, text in enumerate(LINES, 1) if text.endswith(end))


def test_pytest_goes_on_to_the_end(session: Session) -> None:
    assert session.exit_code == 1, session.output
    assert session.outcomes.pop("test_after_all_that") == "passed", session.output
    errors = {"test_fixture", "test_unknown_backend", "test_unknown_check"}
    errors |= {"test_wrong_mark", "test_without_mark"}
    for name, outcome in session.outcomes.items():
        assert outcome == ("error" if name in errors else "failed"), name


def test_each_distinct_traceback_once_with_its_ranks(session: Session) -> None:
    said = session.failure("test_two_tracebacks")
    assert "ranks 0-2:" in said
    assert "rank 3:" in said
    assert said.count("assert values == [1, 2, 4]") == 1
    assert "At index 2 diff: 3 != 4" in said, "the assertion was not rewritten in the rank"
    assert said.count("KeyError: 'only three'") == 1
    assert said.count("printed False") == 1
    assert "Captured stdout of ranks 0-2" in said
    assert "Captured stdout of rank 3" in said


def test_the_others_are_folded_into_the_root_failure(session: Session) -> None:
    said = session.failure("test_one_fails_and_the_others_wait")
    assert said.startswith("rank 2:"), said
    assert said.count("Error") == 2, f"one traceback of an AssertionError:\n{said}"
    assert "ranks 0,1,3 waited in barrier" in said, said
    assert session.seconds["test_one_fails_and_the_others_wait"] < SOON_S


@pytest.mark.parametrize(
    ("test", "title", "more"),
    [
        ("test_mismatch", "MISMATCH", "broadcast(src=1, float32[4])"),
        ("test_one_leaves_early", "EARLY EXIT", "rank 1"),
        ("test_deadlock", "DEADLOCK", "recv"),
    ],
)
def test_a_hang_ends_at_the_finding_which_comes_first(
    session: Session, test: str, title: str, more: str
) -> None:
    said = session.failure(test)
    assert said.startswith(title), said
    assert more in said
    assert session.seconds[test] < SOON_S


def test_the_culprit_is_named_with_its_line(session: Session) -> None:
    said = session.failure("test_mismatch")
    assert f"test_it.py:{line_of('# culprit')} in test_mismatch   <- look here" in said


def test_a_strict_test_fails_where_lines_part(session: Session) -> None:
    said = session.failure("test_lines_part")
    assert said.startswith("LINES PART"), said
    assert f"rank 1 skipped test_it.py:{line_of('# loss')}" in said
    assert "at #30" in said


def test_a_rank_that_dies_takes_nobody_with_it(session: Session) -> None:
    killed = session.failure("test_killed")
    assert killed.startswith("RANK DIED"), killed
    assert "rank 1 was killed by SIGKILL" in killed
    assert "last words of 1" in killed
    left = session.failure("test_leaves_python")
    assert "rank 1 ended in the middle of the test: exit code 0" in left


def test_a_timeout_shows_who_is_late_and_where_all_stand(session: Session) -> None:
    said = session.failure("test_hangs")
    assert said.startswith("the test did not end within 12 s"), said
    assert "MISSING RANK" in said
    assert f"test_it.py:{line_of('# here')}" in said
    stood = said[said.index("where the ranks stood:") :]
    assert "2 ranks" in stood or "0,1" in stood, stood


def test_a_fixture_that_fails_is_an_error_of_the_setup(session: Session) -> None:
    said = session.failure("test_fixture")
    assert "rank 1:" in said
    assert "ValueError: no fixture for rank 1" in said


def test_a_subtest_that_fails_in_one_rank_fails_the_test(session: Session) -> None:
    said = session.failure("test_a_part_fails_and_the_body_goes_on")
    assert said.count("AssertionError: only in rank 1") == 1
    if pytest.version_tuple >= (9,):  # before that the body ended there
        assert said.startswith("rank 1, subtest (part=1):"), said
        assert "all parts were run" in said
        assert "waited" not in said


def test_a_group_that_cannot_be_made_is_one_error(session: Session) -> None:
    said = session.failure("test_unknown_backend")
    assert "Unknown backend type nosuch" in said
    assert "rank_session.py" not in said, "a traceback without a line of the user's"
    assert "at teardown of test_unknown_backend" not in session.output


def test_a_test_is_skipped_in_all_ranks_or_in_none(session: Session) -> None:
    said = session.failure("test_skipped_by_one")
    assert "rank 1 skipped the test (Skipped: only me), rank 0 did not" in said


def test_wrong_use_is_one_sentence(session: Session) -> None:
    assert "@pytest.mark.distributed does not know 'nprocs'" in session.failure("test_wrong_mark")
    assert "'heat' is none of nan, nan-origin, overflow," in session.failure("test_unknown_check")
    assert "dist_rank is for tests with @pytest.mark.distributed" in session.failure(
        "test_without_mark"
    )
