"""Whether a thread of a planned rank may yet do something, as another one of its threads tells."""

from __future__ import annotations

import threading

import pytest

from distdebug.rank.plan.scheduler import JOINS, MOVES
from distdebug.rank.plan.standing_threads import StandingThreads
from tests.support.waiting import until


def test_a_thread_that_has_not_run_yet_may_do_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts one waits until it runs, which takes a while on a machine that has much to do."""
    stands, words = StandingThreads(lambda _: 7), []

    def asks() -> None:
        until(lambda: stands.tell()[0] == JOINS, "the main thread joins this one")
        started = threading.Thread()
        with monkeypatch.context() as patched:
            patched.setitem(threading._limbo, started, started)  # type: ignore[attr-defined]
            words.append(stands.tell()[0])
        until(lambda: stands.tell()[0] == JOINS, "the main thread still does")

    thread = threading.Thread(target=asks)
    thread.start()
    thread.join()
    assert words == [MOVES]
