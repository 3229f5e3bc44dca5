"""The order of a group's calls, whoever runs them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch

from distcore.engine.call_queue import Callbacks, CallQueue
from distcore.engine.work import PendingWork
from distcore.errors import DeadlineExceeded

LIMIT_S = 20.0


def test_each_job_runs_once_and_in_order_whoever_runs_it() -> None:
    """Also where the caller runs so many itself that the group's thread is not woken any more."""
    queue = CallQueue("a group")
    ran: list[int] = []
    threads = set()
    jobs: list[Callable[[], None]] = []

    def submit() -> None:
        number = len(jobs)

        def job() -> None:
            ran.append(number)
            threads.add(threading.get_ident())

        jobs.append(job)
        queue.submit(job)

    for _ in range(500):
        submit()
        queue.run_here(jobs[-1])
    for count in (1, 2, 30):  # of which nobody runs one, be the thread awake or not
        for _ in range(count):
            submit()
        assert queue.drain(LIMIT_S)
    assert ran == list(range(len(jobs)))
    assert len(threads) <= 2
    assert not queue.run_here(jobs[-1]), "it has run"
    queue.stop()


def test_a_job_that_has_begun_is_not_run_again() -> None:
    queue = CallQueue("a group")
    begun, go_on = threading.Event(), threading.Event()
    others: list[int] = []

    def job() -> None:
        begun.set()
        assert go_on.wait(LIMIT_S)

    def behind() -> None:
        others.append(1)

    queue.submit(job)
    queue.submit(behind)
    assert begun.wait(LIMIT_S)
    assert not queue.run_here(job)
    assert not queue.run_here(behind), "its turn has not come"
    go_on.set()
    assert queue.drain(LIMIT_S)
    assert others == [1]
    queue.stop()


def test_a_call_is_not_run_where_a_handler_may_end_the_wait() -> None:
    queue = CallQueue("a group")
    threads = []
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        for _ in range(50):

            def job() -> None:
                threads.append(threading.get_ident())

            queue.submit(job)
            assert not queue.run_here(job)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert queue.drain(LIMIT_S)
    assert len(threads) == 50
    assert threading.get_ident() not in threads
    queue.stop()


def test_who_waits_without_a_time_limit_runs_the_call() -> None:
    work = PendingWork("all_reduce()", [torch.zeros(1)], Callbacks("a group"))

    def run() -> bool:
        work.finish(None)
        return True

    work.run_here = run
    with pytest.raises(DeadlineExceeded):
        work.wait(timedelta(milliseconds=1))
    assert not work.is_completed(), "one who may give up cannot run it"
    assert work.wait()
    assert work.is_completed()
