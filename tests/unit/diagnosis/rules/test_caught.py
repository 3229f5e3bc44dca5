"""What ranks have caught of their calls is told by later findings about them, and by no others."""

from __future__ import annotations

from ..builder import Run, all_reduce, barrier

TEXT = "KeyError: 'loss'"


def swallowed(run: Run, rank: int, text: str = TEXT, line: int = 12) -> None:
    run[rank].notes_down(
        "left_call",
        text,
        line,
        type=text.partition(":")[0],
        function="all_gather_object",
        call=len(run[rank].history.calls),
    )


def disagree(run: Run) -> tuple[str, ...]:
    """Rank 1 makes another call; the details of what is found."""
    run[0, 2].calls(all_reduce(8), waits=True)
    run[1].calls(barrier(), waits=True)
    (found,) = run.errors()
    return tuple(row for row in found.details if "went on" in row)


def test_the_last_one_is_told() -> None:
    run = Run(3)
    swallowed(run, 1, "ValueError: an earlier one")
    swallowed(run, 1)
    (told,) = disagree(run)
    assert told == (
        "rank 1 raised KeyError in all_gather_object at train.py:12 in step before this, and went "
        "on ('loss')"
    )


def test_ranks_that_have_caught_the_same_share_a_line() -> None:
    run = Run(3)
    for rank in range(3):
        swallowed(run, rank)
    (told,) = disagree(run)
    assert told.startswith("ranks 0,1,2 raised KeyError in all_gather_object at train.py:12")


def test_what_comes_later_is_not() -> None:
    run = Run(3)
    run[0, 2].calls(all_reduce(8), waits=True)
    run[1].calls(barrier(), waits=True)
    swallowed(run, 1)
    (found,) = run.errors()
    assert not [row for row in found.details if "went on" in row]


def test_what_nobody_has_caught_is_no_detail() -> None:
    run = Run(3)
    swallowed(run, 1)
    run[1].notes_down("exception", f"{TEXT} (in ExceptionGroup)", 12, type="KeyError")
    run[1].exits(1)
    (found,) = run.errors()
    assert found.kind == "rank_exception"
    assert not [row for row in found.details if "went on" in row]


def test_a_rank_that_may_be_on_its_way_out_has_not_gone_on() -> None:
    for passed, told in ((0, 0), (70, 1)):
        run = Run(2)
        run[0].calls(all_reduce(8), waits=True)
        swallowed(run, 1)
        run.passes(passed)
        run[1].exits(signal=9)
        (found,) = run.errors()
        assert len([row for row in found.details if "went on" in row]) == told


def test_alone_it_is_no_finding() -> None:
    run = Run(2)
    swallowed(run, 1)
    run.each(all_reduce(8))
    assert run.errors() == []
