"""What is left of a look at a run that was told to end by a signal."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any, cast

from distdebug.diagnosis.findings import Finding
from distdebug.diagnosis.limits import Limits
from distdebug.record.snapshot import Snapshot
from distdebug.supervisor.watch import Look, Policy, Watch, without_deaths_by

from ..diagnosis.builder import Run, all_reduce


def died_of(rank: int, number: signal.Signals) -> Finding:
    return Finding("rank_died", "it died", (rank,), data={"signal": int(number)})


def test_who_died_of_that_signal_has_done_nothing() -> None:
    asked, own = died_of(1, signal.SIGINT), died_of(2, signal.SIGSEGV)
    other = Finding("op_mismatch", "they differ", (0,))
    look = without_deaths_by(Look((), [asked, own, other], (), None), signal.SIGINT)
    assert look.findings == [own, other]


class OneLook:
    """A reader that has seen this run, once."""

    change_mark = ()

    def __init__(self, run: Run) -> None:
        self._run = run

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        del finished
        return [self._run.snapshot()]

    def only_calling(self) -> bool:
        return False


def interrupted(after_s: float) -> Watch:
    """Rank 2 has not come for so long as Ctrl-C is pressed."""
    run = Run(3)
    run[0, 1].calls(all_reduce(8), waits=True)
    run.passes(after_s)
    watch = Watch(cast(Any, OneLook(run)), Policy(Limits(hang_timeout_s=60, notice_after_s=10)))
    assert not watch.look().findings
    return watch


def test_who_was_noticed_is_suspected_when_nobody_waits_any_longer() -> None:
    (found,) = interrupted(15).suspects()
    assert (found.kind, found.culprits, found.proven) == ("missing_rank", (2,), False)
    assert found.severity == "warning", "by its own limits nothing is wrong in the run"


def test_of_whom_nothing_was_noticed_nobody_is_suspected() -> None:
    assert interrupted(5).suspects() == []
