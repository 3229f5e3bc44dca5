"""A library's threads: the program finds none of them, and each ends as one of its own would."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from distcore.base import background_thread
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


def test_it_knows_itself_before_its_beginner_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is given no core just then: else it would wait for its own end."""
    begin, said = background_thread._thread.start_new_thread, threading.Event()
    found: list[bool] = []

    def held_up(*args: Any) -> int:
        ident = begin(*args)
        assert said.wait(LIMIT_S)
        return ident

    def work() -> None:
        found.append(thread.is_here())
        said.set()

    monkeypatch.setattr(background_thread._thread, "start_new_thread", held_up)
    thread = BackgroundThread(work, "knows itself")
    thread.start()
    thread.join(LIMIT_S)
    assert found == [True]
    assert not thread.is_here()


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
