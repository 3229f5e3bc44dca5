"""What planned ranks have for one another is answered when it is there, and the same again."""

from __future__ import annotations

from distdebug.rank.plan.board import TIMED_OUT, Board


def begun(ranks: int) -> Board:
    board = Board()
    for rank in range(ranks):
        board.begin(rank)
    return board


def test_a_collective_is_answered_when_all_have_come() -> None:
    board = begun(2)
    request = ["collect", "g#0.1", "all_reduce(sum, int64[1])", 0, [0, 1]]
    board.told(0, ["offer", "g#0.1", "all_reduce(sum, int64[1])", 0], [b"a"])
    assert board.answer(0, request, []) is None
    board.told(1, ["offer", "g#0.1", "all_reduce(sum, int64[1])", 1], [b"b"])
    assert board.answer(0, request, []) == ([], [b"a", b"b"])
    assert board.answer(0, request, []) == ([], [b"a", b"b"])  # of a rank that is run again


def test_ranks_that_make_other_calls_never_meet() -> None:
    board = begun(2)
    board.told(0, ["offer", "g#0.1", "all_reduce(sum, int64[1])", 0], [b"a"])
    board.told(1, ["offer", "g#0.1", "all_reduce(max, int64[1])", 1], [b"b"])
    request = ["collect", "g#0.1", "all_reduce(sum, int64[1])", 0, [0, 1]]
    assert board.answer(0, request, []) is None
    assert not board.could_answer(0, request, [])


SLOT, SIZES, LOSS = "g#0.1", "all_gather(int64[1])", "all_reduce(sum, float32[1])"


def gathered(member: int, text: str = SIZES) -> list[object]:
    return ["collect", SLOT, text, member, list(range(20))]


def with_parts(text: str, parts: list[bytes]) -> Board:
    board = begun(20)
    for rank, part in enumerate(parts):
        board.told(rank, ["offer", SLOT, text, rank], [part])
    return board


def test_what_all_have_given_so_far_can_be_assumed_of_the_others() -> None:
    board = with_parts(SIZES, [b"a"] * 8)
    assert board.answer(0, gathered(0), []) is None
    assert board.assume(gathered(0))
    assert board.answer(0, gathered(0), []) == ([], [b"a"] * 20)
    board.told(8, ["offer", SLOT, SIZES, 8], [b"a"])
    assert not board.refuted
    board.told(9, ["offer", SLOT, SIZES, 9], [b"b"])
    assert board.refuted


def test_whoever_makes_another_call_refutes_nothing() -> None:
    """Then the others wait for ever, which is seen when the programs are executed."""
    board = with_parts(SIZES, [b"a"] * 8)
    assert board.assume(gathered(0))
    board.told(8, ["offer", SLOT, LOSS, 8], [b"b"])
    assert not board.refuted


def test_numbers_that_differ_are_not_known_to_anybody() -> None:
    board = with_parts(LOSS, [bytes([rank]) for rank in range(8)])
    assert board.assume(gathered(0, LOSS))
    for rank in range(8, 20):
        board.told(rank, ["offer", SLOT, LOSS, rank], [b"x"])
    assert not board.refuted
    assert board.answer(0, gathered(0, LOSS), []) == ([], [None] * 20)


def test_nothing_is_assumed_of_integers_that_differ_or_of_few_ranks() -> None:
    board = with_parts(SIZES, [bytes([rank]) for rank in range(19)])
    assert not board.assume(gathered(0))
    assert not with_parts(SIZES, [b"a"] * 7).assume(gathered(0))
    assert not board.assume(["take", "c", 0, 1, 0, 1])


def test_each_rank_gets_its_own_part() -> None:
    board = begun(2)
    board.told(0, ["offer", "g#0.1", "scatter", 0], [b"for 0", b"for 1"])
    assert board.answer(1, ["collect", "g#0.1", "scatter", 1, [0]], []) == ([], [b"for 1"])


def test_a_value_that_is_not_known_stays_unknown() -> None:
    board = begun(2)
    board.told(0, ["offer", "g#0.1", "broadcast", 0], [None])
    assert board.answer(1, ["collect", "g#0.1", "broadcast", 1, [0]], []) == ([], [None])


def test_who_comes_first_says_what_stands_in_for_a_result() -> None:
    board = begun(3)
    answers = [board.answer(rank, ["agree", SLOT, LOSS], [bytes([rank])]) for rank in (2, 0, 1)]
    assert answers == [([], [b"\2"])] * 3
    board.begin(2)
    assert board.answer(2, ["agree", SLOT, LOSS], [b"x"]) == ([], [b"\2"])


def test_messages_of_any_source_and_of_one_are_taken_in_their_order() -> None:
    board = begun(3)
    for source, value in ((1, b"first of 1"), (2, b"first of 2"), (1, b"second of 1")):
        board.told(source, ["send", "g", source, 0, 7], [value])
    assert board.answer(0, ["take_any", "g", 0, 7], []) == ([1], [b"first of 1"])
    board.told(0, ["expect", "g", 1, 0, 7], [])
    assert board.answer(0, ["take", "g", 1, 0, 7, 2], []) == ([], [b"second of 1"])
    assert board.answer(0, ["take_any", "g", 0, 7], []) == ([2], [b"first of 2"])
    assert board.answer(0, ["take_any", "g", 0, 7], []) is None


def test_a_rank_that_is_run_again_sees_the_store_as_it_was() -> None:
    board = begun(2)
    assert board.answer(0, ["store", "add", "k", 1], []) == ([1], [])
    assert board.answer(1, ["store", "add", "k", 1], []) == ([2], [])
    board.begin(0)
    assert board.answer(0, ["store", "add", "k", 1], []) == ([1], [])  # not counted twice
    assert board.answer(0, ["store", "add", "k", 1], []) == ([3], [])


def test_a_rank_that_is_run_again_sends_nothing_twice() -> None:
    board = begun(2)
    for _ in range(2):
        board.begin(1)
        board.told(1, ["send", "g", 1, 0, 0], [b"x"])
    assert board.answer(0, ["take_any", "g", 0, 0], []) == ([1], [b"x"])
    assert board.answer(0, ["take_any", "g", 0, 0], []) is None


def test_a_key_is_waited_for_until_its_time_is_over() -> None:
    board = begun(2)
    assert board.answer(0, ["store", "get", "k"], []) is None
    assert board.timed_out(0) == ([TIMED_OUT], [])
    board.answer(1, ["store", "set", "k"], [b"v"])
    assert board.answer(0, ["store", "get", "k"], []) == ([], [b"v"])


def test_compare_set_and_queues() -> None:
    board = begun(1)
    assert board.answer(0, ["store", "compare_set", "k"], [b"", b"1"]) == ([], [b"1"])
    assert board.answer(0, ["store", "compare_set", "k"], [b"0", b"2"]) == ([], [b"1"])
    assert board.answer(0, ["store", "compare_set", "k"], [b"1", b"2"]) == ([], [b"2"])
    assert board.answer(0, ["store", "pop", "q"], []) is None
    board.answer(0, ["store", "push", "q"], [b"x"])
    assert board.answer(0, ["store", "pop", "q"], []) == ([], [b"x"])


def test_what_one_rank_has_found_is_there_for_the_others() -> None:
    board = begun(2)
    assert board.answer(1, ["recall", "the shape"], []) == ([None], [])  # who finds it itself
    board.told(0, ["remember", "the shape", "[2, 3]"], [])
    assert board.answer(1, ["recall", "the shape"], []) == (["[2, 3]"], [])
