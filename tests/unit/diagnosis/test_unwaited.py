"""Handles that nobody waited for: one warning a line, whatever the number of calls and ranks."""

from __future__ import annotations

from .builder import Run


def test_one_warning_a_line() -> None:
    run = Run(3)
    for rank in (0, 2):
        run[rank].notes_down("unwaited_work", line=17, op="all_reduce", count=1)
        run[rank].notes_down("unwaited_work", line=17, op="all_reduce", count=20)
    run[1].notes_down("unwaited_work", line=30, op="send", count=1)
    first, second = run.diagnose().findings
    assert (first.kind, first.severity, first.culprits) == ("unwaited_work", "warning", (0, 2))
    assert (first.exit_code, first.data["count"]) == (0, 40)
    assert "ranks 0,2 dropped 40 handles of all_reduce at train.py:17 in step" in first.message
    assert first.ranks[2].location is not None
    assert first.ranks[2].location.line == 17
    assert second.culprits == (1,)
    assert "rank 1 dropped the handle of send at train.py:30 in step" in second.message
