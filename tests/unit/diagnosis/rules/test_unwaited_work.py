"""Handles that nobody waited for: one warning a line, whatever the number of calls and ranks."""

from __future__ import annotations

from ..builder import Run


def test_one_warning_a_line() -> None:
    run = Run(3)
    for rank in (0, 2):
        run[rank].notes_down("unwaited_work", line=17, op="all_reduce", count=1)
        run[rank].notes_down("unwaited_work", line=17, op="all_reduce", count=20)
    run[1].notes_down("unwaited_work", line=30, op="send", count=1)
    first, second = run.diagnose().findings
    assert (first.kind, first.severity, first.culprits) == ("unwaited_work", "warning", (0, 2))
    assert (first.exit_code, first.data["count"]) == (0, 40)
    assert (
        "ranks 0,2 dropped 40 handles of all_reduce at train.py:17 in step without wait() while "
        "the calls were under way: nobody" in first.message
    )
    assert first.ranks[2].location is not None
    assert first.ranks[2].location.line == 17
    assert second.culprits == (1,)
    assert "rank 1 dropped the handle of send at train.py:30 in step without wait(): nobody" in (
        second.message
    )


def test_kept_to_the_end() -> None:
    """Another matter than those that were dropped at that line."""
    run = Run(2)
    run[0].notes_down("unwaited_work", line=17, op="all_reduce", count=1, kept=False)
    run[0].notes_down("unwaited_work", line=17, op="all_reduce", count=2, kept=True)
    dropped, kept = run.diagnose().findings
    assert "rank 0 dropped the handle of all_reduce" in dropped.message
    assert (
        "rank 0 never waited for 2 handles of all_reduce at train.py:17 in step: the calls were "
        "under way when the program ended: nobody" in kept.message
    )
