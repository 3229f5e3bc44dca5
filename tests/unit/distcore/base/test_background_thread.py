"""A library's threads: the program finds none of them, and each ends as one of its own would."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from distcore.base.background_thread import BackgroundThread
from tests.support import system_threads

LIMIT_S = 30.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a thread waits for; open at the latest when the test is over."""
    found = threading.Event()
    yield found
    found.set()


def test_the_program_does_not_see_it(gate: threading.Event) -> None:
    before = threading.enumerate()
    begun = threading.Event()

    def work(word: str) -> None:
        assert thread.is_here()
        (begun if word == "given" else gate).set()
        gate.wait(LIMIT_S)

    thread = BackgroundThread(work, "serves the group", ("given",))
    assert not thread.is_alive()
    assert repr(thread) == "<BackgroundThread 'serves the group': not begun>"
    thread.start()
    assert begun.wait(LIMIT_S)
    assert thread.is_alive()
    assert not thread.is_here()
    assert set(threading.enumerate()) <= set(before), "one of another test's may have ended"
    assert "serves the grou" in system_threads.names()
    thread.join(0.01)
    assert repr(thread) == "<BackgroundThread 'serves the group': running>"
    gate.set()
    thread.join(LIMIT_S)
    assert repr(thread) == "<BackgroundThread 'serves the group': ended>"


def test_a_forked_child_does_not_have_it(gate: threading.Event) -> None:
    thread = BackgroundThread(gate.wait, "waits")
    thread.start()
    child = os.fork()
    if not child:
        thread.join()  # at once
        os._exit(thread.is_alive() or thread.is_here())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.is_alive()


def test_what_it_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))
    error = KeyError("lost")

    def work(what: BaseException) -> None:
        raise what

    for one in (error, SystemExit(3)):  # an exit is none, as in every thread
        thread = BackgroundThread(work, "fails", (one,))
        thread.start()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert told == [error]
