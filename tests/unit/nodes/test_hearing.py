"""Who has fallen silent, by made-up clocks: a head that is behind takes nobody for lost."""

from __future__ import annotations

from distdebug.nodes.clocks import Heard, Listening

AFTER_S, EVERY_S = 2.6, 0.25


class Ends:
    """The queue that is read, and one node at the other end; `now_s` is the clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.listening, self.heard = Listening(), Heard()
        self.listening.looked(self.now_s, True)
        self.heard.spoke(self.listening.total_s)

    def passes(self, seconds: float, every_s: float = 0.1, to_the_end: bool = True) -> None:
        """So much time, in which the queue is looked at and the node is asked; it says nothing."""
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            self.listening.looked(self.now_s, to_the_end)
            self.heard.asked(self.listening.total_s)

    @property
    def lost(self) -> bool:
        return self.heard.is_lost(self.listening.total_s, AFTER_S, EVERY_S)


def test_a_node_that_says_nothing_is_lost_in_time() -> None:
    ends = Ends()
    ends.passes(2.5)
    assert not ends.lost
    ends.passes(0.3)
    assert ends.lost


def test_a_node_that_speaks_is_not_lost() -> None:
    ends = Ends()
    for _ in range(20):
        ends.passes(0.5)
        ends.heard.spoke(ends.listening.total_s)
    assert not ends.lost


def test_a_head_that_was_not_there_has_missed_nobody() -> None:
    """It was stopped, or the machine gave it no time: what was said meanwhile is in the queue."""
    ends = Ends()
    ends.passes(60.0, every_s=60.0)
    assert not ends.lost
    ends.passes(0.5)
    assert not ends.lost
    ends.passes(2.5)
    assert ends.lost, "it is silent while we listen, too"


def test_a_head_that_never_reads_its_queue_to_the_end_misses_nobody() -> None:
    ends = Ends()
    ends.passes(60.0, to_the_end=False)
    assert not ends.lost
    ends.passes(2.9)
    assert ends.lost


def test_a_node_that_was_not_asked_is_not_missed() -> None:
    ends = Ends()
    for _ in range(100):
        ends.now_s += 0.1
        ends.listening.looked(ends.now_s, True)
    assert not ends.lost
    ends.passes(2.0)
    assert ends.lost, "it was asked, and answers nothing"
