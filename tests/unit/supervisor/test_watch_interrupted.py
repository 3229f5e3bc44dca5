"""What is left of a look at a run that was told to end by a signal."""

from __future__ import annotations

import signal

from debugger.diagnosis.findings import Finding
from debugger.supervisor.watch import Look, without_deaths_by


def died_of(rank: int, number: signal.Signals) -> Finding:
    return Finding("rank_died", "it died", (rank,), data={"signal": int(number)})


def test_who_died_of_that_signal_has_done_nothing() -> None:
    asked, own = died_of(1, signal.SIGINT), died_of(2, signal.SIGSEGV)
    other = Finding("op_mismatch", "they differ", (0,))
    look = without_deaths_by(Look((), [asked, own, other], (), None), signal.SIGINT)
    assert look.findings == [own, other]
