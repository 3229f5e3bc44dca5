"""The supervisor says once who has come to a breakpoint, and once who has left it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from distdebug.record.requests.breakpoints import Stop
from distdebug.supervisor.guarded_watch import Pauses

HERE = Stop(2, 71, "train.py", 42, "step", "breakpoint", "")
COME = "rank 2 is at a breakpoint (train.py:42 in step); attach with: distdebug attach --rank 2"


def test_told_once() -> None:
    standing: list[Stop] = []
    pauses = Pauses(Path("run"), "", lambda _directory: list(standing))
    assert pauses.look() == ([], False)
    standing.append(HERE)
    assert pauses.look() == ([COME], True)
    assert pauses.look() == ([], True)
    standing[0] = replace(HERE, line=43)  # it was left and came to the next between two looks
    assert pauses.look() == ([COME.replace(":42", ":43")], True)
    standing.clear()
    assert pauses.look() == (["rank 2 has left its breakpoint (train.py:43 in step)"], False)
    assert pauses.look() == ([], False)
