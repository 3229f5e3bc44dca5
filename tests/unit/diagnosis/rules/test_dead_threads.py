"""Threads that died while their rank lives on; and their twins."""

from __future__ import annotations

from ..builder import Run, all_reduce, barrier

ERROR = "KeyError: 'lr'"


def side_by_side() -> Run:
    """Two ranks with a thread each: thread 1 uses the world, thread 2 the group "1"."""
    run = Run(2)
    run.new_group("1", (0, 1))
    run.each(all_reduce(8), thread=1)
    run.each(all_reduce(4), group="1", thread=2)
    return run


def dies(run: Run, rank: int, slot: int = 2) -> None:
    run[rank].notes_down("thread_exception", ERROR, 9, thread="Thread-2", thread_slot=slot)


def test_the_thread_that_made_the_calls_others_wait_for() -> None:
    run = side_by_side()
    dies(run, 1)
    run[0].calls(all_reduce(4), group="1", thread=2, waits=True)
    run[0].waits_in(run[0].calls(all_reduce(8), thread=1), thread=1)
    run.passes(3)
    assert run.errors() == []
    run.passes(1)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("rank_exception", (1,), (0,))
    assert not found.proven
    assert found.message == (
        "rank 1 raised KeyError: 'lr' in its thread 'Thread-2' at train.py:9 in step, which ended "
        "that thread only; suspected: rank 0 waits for its next call in "
        'all_reduce(sum, float32[4]) #1 of group "1"'
    )
    assert found.ranks[1].location.line == 9
    assert found.ranks[0].call == "all_reduce(sum, float32[4])"


def test_it_explains_the_early_exit_of_its_rank() -> None:
    run = side_by_side()
    dies(run, 1)
    run[0].calls(all_reduce(4), group="1", thread=2, waits=True)
    run[1].exits(0)
    (found,) = run.errors(settled=False)
    assert (found.kind, found.culprits, found.proven) == ("rank_exception", (1,), True)


def test_another_thread_has_taken_over() -> None:
    run = side_by_side()
    dies(run, 1)
    run.each(all_reduce(4), group="1", thread=3)
    run[0].calls(all_reduce(4), group="1", thread=2, waits=True)
    run.passes(5)
    assert run.errors() == []


def test_others_wait_for_a_thread_that_lives() -> None:
    run = side_by_side()
    dies(run, 1)
    run[0].calls(all_reduce(8), thread=1, waits=True)
    run.passes(5)
    assert run.errors() == []
    run.passes(60)
    (found,) = run.errors()
    assert (found.kind, found.culprits) == ("missing_rank", (1,))
    assert found.details[0] == (
        "before that, thread 'Thread-2' of rank 1 died of KeyError: 'lr' at train.py:9 in step"
    )


def test_a_thread_that_this_tool_has_ended() -> None:
    run = side_by_side()
    run[1].notes_down("thread_exception", ERROR, 9, thread="t", thread_slot=2, own_fault=True)
    run[0].calls(all_reduce(4), group="1", thread=2, waits=True)
    run.passes(6)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.exit_code) == ("tool_error", (1,), 96)
    assert found.message.startswith("distdebug itself failed: rank 1 raised KeyError")


def test_a_thread_that_failed_since_another_rank_did_is_not_the_cause() -> None:
    run = side_by_side()
    run[1].notes_down(
        "thread_exception", "RuntimeError: Connection closed by peer", 9, thread_slot=2
    )
    run[0].calls(barrier(), group="1", thread=2, waits=True)
    run.passes(5)
    assert run.errors() == []


CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:4711"


def loses(run: Run, *, daemon: bool = False) -> None:
    """A thread of rank 0 dies of a call that rank 1 has not made."""
    run[0].calls(all_reduce(4), group="1", thread=2, fails=True)
    run[0].notes_down("thread_exception", CLOSED, 9, thread_slot=2, daemon=daemon)


def test_a_thread_that_lost_a_rank_while_its_main_thread_is_busy() -> None:
    run = side_by_side()
    run[1].destroys("1")
    loses(run)
    run.passes(1)
    assert run.errors() == []
    run.passes(3)
    (found,) = run.errors()
    assert (found.kind, found.culprits, found.victims) == ("early_exit", (1,), (0,))
    assert found.proven
    assert found.message == (
        "rank 1 destroyed the group after 1 call in the group, but rank 0 needed it in "
        'all_reduce(sum, float32[4]) #1 of group "1"'
    )


def test_threads_that_their_program_leaves_behind() -> None:
    run = side_by_side()
    run[1].destroys("1")
    loses(run, daemon=True)
    run.passes(5)
    assert run.errors() == []
    for leaves in (lambda rank: rank.notes_down("destroyed"), lambda rank: rank.begins_to_exit()):
        run = side_by_side()
        run[1].destroys("1")
        loses(run)
        run.passes(1)
        leaves(run[0])
        run.passes(5)
        assert run.errors() == []


def test_a_thread_that_went_on_after_it_lost_a_rank() -> None:
    run = side_by_side()
    run[1].destroys("1")
    run[0].calls(all_reduce(4), group="1", thread=2, fails=True)
    run[0].calls(all_reduce(8), thread=2, is_async=False)
    run[1].calls(all_reduce(8), thread=1)
    run[0].notes_down("thread_exception", CLOSED, 9, thread_slot=2, daemon=False)
    run.passes(5)
    assert run.errors() == []
