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


def test_a_thread_of_another_language_that_has_ended_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stands, words = StandingThreads(lambda _: 7), []

    def asks() -> None:
        until(lambda: stands.tell()[0] == JOINS, "the main thread joins this one", 10.0)
        words.append(JOINS)

    # As `threading.current_thread()` leaves it of a thread that Python has not started.
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    monkeypatch.setattr(ended, "_ident", 1)
    monkeypatch.setitem(threading._active, 1, ended)  # type: ignore[attr-defined]
    thread = threading.Thread(target=asks)
    thread.start()
    thread.join()
    assert words == [JOINS]
