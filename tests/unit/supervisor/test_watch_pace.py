"""How soon a watch looks again: the dearer looks are, the later; and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from distdebug.diagnosis.findings import Finding
from distdebug.record import steady_clock
from distdebug.record.layout import Activity
from distdebug.record.snapshot import Process, Rank, Snapshot, Wait
from distdebug.supervisor import limits, watch
from distdebug.supervisor.watch import Policy, Watch


class Reader:
    """Each look takes `cost_s` of the processor. `asked`: since when all was to have been told."""

    def __init__(self, cost_s: float = 0.0, ranks: Sequence[Rank] = ()) -> None:
        self.cost_s, self.used_s = cost_s, 0.0
        self.ranks = {one.rank: one for one in ranks}
        self.told = self.calling = self.has_all_told = False
        self.looks = 0
        self.asked: list[float] = []
        self.tells_when_asked = False
        self.asked_for_progress = 0

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        del finished
        self.used_s += self.cost_s
        self.looks += 1
        if not self.ranks:
            return ()
        return [Snapshot(steady_clock.now_ns(), len(self.ranks), self.ranks)]

    def all_told(self) -> bool:
        return self.has_all_told

    def only_calling(self) -> bool:
        return self.calling

    def ask(self) -> bool:
        self.asked_for_progress += 1
        return self.tells_when_asked

    @property
    def change_mark(self) -> tuple[object, ...]:
        return (self.used_s,)

    def starting(self) -> bool:
        return False

    def settled(self, since_s: float, about: Finding) -> bool:
        del about
        self.asked.append(since_s)
        return self.told


@pytest.mark.parametrize(
    ("cost_s", "pause_s"), [(0.0, 0.1), (0.04, 0.1), (0.5, 1.0)], ids=["none", "small", "large"]
)
def test_the_pause_after_a_look(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, pause_s: float
) -> None:
    reader = Reader(cost_s)
    monkeypatch.setattr(watch.time, "thread_time", lambda: reader.used_s)
    made = Watch(reader, Policy())
    assert made.pause_s == limits.RECORDS_EVERY_S
    made.look()
    assert made.pause_s == pytest.approx(pause_s)


def test_one_look_that_takes_long_is_not_followed_by_a_long_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Much has happened: it is a bad moment to wait."""
    reader = Reader(0.01)
    monkeypatch.setattr(watch.time, "thread_time", lambda: reader.used_s)
    made = Watch(reader, Policy())
    for _ in range(watch.USUAL_OF):
        made.look()
    reader.cost_s = 2.0
    made.look()
    assert limits.RECORDS_EVERY_S < made.pause_s < 1.0
    for _ in range(watch.USUAL_OF):
        made.look()
    assert made.pause_s == pytest.approx(4.0), "such are all looks now"


def test_what_is_taken_in_between_looks_counts_as_their_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader(0.1)
    reader.used_s = 50.0  # before there was anything to look at
    monkeypatch.setattr(watch.time, "thread_time", lambda: reader.used_s)
    made = Watch(reader, Policy())
    made.look()
    assert made.pause_s == pytest.approx(0.2)
    for _ in range(watch.USUAL_OF):
        reader.used_s += 0.3
        made.look()
    assert made.pause_s == pytest.approx(0.8)


class Clock:
    """In the place of the watch's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reader: Reader) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(watch.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(watch.time, "thread_time", lambda: reader.used_s)


CALM_S = watch.CALM_EVERY_S


def after_a_long_rest(made: Watch, clock: Clock, reader: Reader) -> None:
    """Ranks have done nothing but call for minutes; a look was made just now."""
    reader.calling = True
    until_s = clock.now_s + 4 * CALM_S
    looks = reader.looks
    while clock.now_s < until_s or reader.looks == looks:
        looks = reader.looks
        clock.now_s += made.pause_s
        made.look()


def test_while_ranks_of_many_nodes_only_go_on_calling_a_look_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To look at all of them takes long; it is done again after a while for the sake of limits."""
    reader = Reader(1.6)
    clock = Clock(monkeypatch, reader)
    made = Watch(reader, Policy())
    first = made.look()
    after_a_long_rest(made, clock, reader)
    began_s, before = clock.now_s, reader.looks
    while clock.now_s < began_s + 720:
        clock.now_s += made.pause_s
        reader.used_s += 0.02  # what is told in between is taken in
        made.look()
    assert reader.looks - before == 720 // CALM_S
    assert made.look() is not first
    held_s, looks = clock.now_s, reader.looks
    made.look()
    assert reader.looks == looks
    reader.calling = False  # one of them stands still
    while reader.looks == looks:
        clock.now_s += made.pause_s
        made.look()
    assert limits.STILL_EVERY_S < clock.now_s - held_s < 1.5, "a moment for what others tell"
    seen_s = clock.now_s
    while reader.looks == looks + 1:
        clock.now_s += made.pause_s
        made.look()
    assert clock.now_s - seen_s <= watch.REST * reader.cost_s, "while there is something to see"


@pytest.mark.parametrize("told", [True, False])
def test_before_a_look_that_held_all_are_asked_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """So ranks that call differently, and all go on, are found with that look, however seldom they
    are told of. Where they are told of all the time nobody is asked, and the look is made at once.
    """
    reader = Reader(1.6)
    reader.tells_when_asked = told
    clock = Clock(monkeypatch, reader)
    made = Watch(reader, Policy())
    made.look()
    after_a_long_rest(made, clock, reader)
    looked_s, looks, asked = clock.now_s, reader.looks, reader.asked_for_progress
    while reader.asked_for_progress == asked:
        clock.now_s += made.pause_s
        made.look()
    asked_s = clock.now_s
    assert asked_s - looked_s == pytest.approx(CALM_S, abs=limits.STILL_EVERY_S)
    while reader.looks == looks:
        clock.now_s += made.pause_s
        made.look()
    after_s = limits.ANSWERS_S if told else 0.0
    assert clock.now_s - asked_s == pytest.approx(after_s, abs=limits.STILL_EVERY_S)
    assert reader.asked_for_progress == asked + 1
    made.look()
    clock.now_s += CALM_S + limits.STILL_EVERY_S
    made.look()
    assert reader.asked_for_progress == asked + 2, "before each"


def test_what_is_told_while_all_are_asked_is_looked_at_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader(0.04)
    reader.tells_when_asked = True
    clock = Clock(monkeypatch, reader)
    made = Watch(reader, Policy())
    made.look()
    after_a_long_rest(made, clock, reader)
    looks, asked = reader.looks, reader.asked_for_progress
    while reader.asked_for_progress == asked:
        clock.now_s += made.pause_s
        made.look()
    assert reader.looks == looks
    reader.calling = False  # one of them stands still
    made.look()
    assert reader.looks == looks + 1


class Waiting(Reader):
    """One rank, which has waited in a call for so long at each look."""

    waits_s = 0.5

    def look(self, finished: bool = False) -> Sequence[Snapshot]:
        super().look(finished)
        now_ns = steady_clock.now_ns()
        since_ns = now_ns - int(self.waits_s * 1e9)
        wait = Wait(1, Activity.IN_CALL, 7, since_ns, call=9, site=None)
        alive = Process(alive=True, state="S")
        return [Snapshot(now_ns, 1, {0: Rank(0, 1, 7, alive, waits=(wait,))})]


class Calling:
    """A watch of ranks that go on calling, and how long its looks hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader = Waiting(1.6)
        self.clock = Clock(monkeypatch, self.reader)
        self.watch = Watch(self.reader, Policy())
        self.watch.look()
        after_a_long_rest(self.watch, self.clock, self.reader)

    def held_s(self) -> float:
        """Until the next look."""
        looks, began_s = self.reader.looks, self.clock.now_s
        while self.reader.looks == looks:
            self.clock.now_s += self.watch.pause_s
            self.watch.look()
        return self.clock.now_s - began_s


def test_the_longer_ranks_have_gone_on_calling_the_longer_a_look_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is told in between is looked at as soon as ever, and then the next looks come soon: none
    holds for longer than it was since then."""
    calling = Calling(monkeypatch)
    for _ in range(2):
        assert calling.held_s() == pytest.approx(CALM_S, abs=limits.RECORDS_EVERY_S + 0.2)
    calling.watch.look()
    calling.reader.calling = False  # one of them stands still
    told_s = calling.clock.now_s
    assert calling.held_s() < 1.5
    calling.reader.calling = True
    held: list[float] = []
    while not held or held[-1] < CALM_S:
        age_s = calling.clock.now_s - told_s
        held.append(calling.held_s())
        assert held[-1] < max(age_s, watch.REST * calling.reader.cost_s) + 0.5
    assert len(held) < 9
    assert held[-1] == pytest.approx(CALM_S, abs=limits.RECORDS_EVERY_S + 0.2)


def test_while_a_rank_waits_for_long_looks_hold_no_longer_than_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twin: its clock runs, and what that brings must not be late; also where the rank itself
    goes on calling in another thread, so that its node says no more than that."""
    calling = Calling(monkeypatch)
    calling.reader.waits_s = 20.0
    calling.held_s()
    for _ in range(3):
        usual_s = watch.CALLING_EVERY_S
        assert calling.held_s() == pytest.approx(usual_s, abs=limits.RECORDS_EVERY_S + 0.2)
    calling.reader.waits_s = 0.5
    calling.held_s()
    assert calling.held_s() == pytest.approx(CALM_S, abs=limits.RECORDS_EVERY_S + 0.2)


def test_what_is_believed_only_when_it_has_lasted_is_looked_at_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Much is held back for half a second, or for two: of many nodes nothing more is told then."""
    calling = Calling(monkeypatch)
    calling.reader.cost_s = 0.15
    for _ in range(watch.USUAL_OF):
        calling.held_s()
    calling.reader.calling = False  # all of them come to stand still
    calling.held_s()
    calling.reader.calling = True  # and nothing more is told of them
    assert calling.held_s() <= limits.SETTLING_S + limits.STILL_EVERY_S


def test_what_all_have_told_of_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment in which others may tell of the same has no more to bring."""
    calling = Calling(monkeypatch)
    calling.held_s()
    calling.reader.calling = False
    calling.reader.has_all_told = True
    assert calling.held_s() <= 3 * limits.STILL_EVERY_S


def test_what_is_told_after_a_look_that_was_long_in_coming_does_not_wait_for_its_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look at all ranks is made now and then; whatever happens just then is seen no later."""
    calling = Calling(monkeypatch)
    calling.held_s()
    assert calling.watch.pause_s == limits.RECORDS_EVERY_S
    calling.reader.calling = False
    assert limits.MOMENT_S <= calling.held_s() < 1.5, "what others tell is waited for, as ever"
    assert calling.watch.pause_s > watch.REST, "the pause after that one is no shorter"


def test_a_look_that_costs_little_holds_for_a_short_while(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(0.004)
    clock = Clock(monkeypatch, reader)
    made = Watch(reader, Policy())
    reader.calling = True
    for _ in range(100):
        made.look()
        clock.now_s += made.pause_s
    looks = reader.looks
    assert looks > 10
    reader.calling = False
    made.look()
    assert reader.looks - looks <= 1


def test_what_may_be_a_finding_is_looked_at_however_much_ranks_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twin: nothing holds while a finding waits for its confirmation."""
    killed = Rank(0, 0, 7, Process(alive=False, signal=9, ended_ns=steady_clock.now_ns()))
    reader = Reader(0.4, ranks=[killed])
    Clock(monkeypatch, reader)
    made = Watch(reader, Policy())
    reader.calling = True
    for count in (1, 2, 3):
        made.look()
        assert reader.looks == count


def test_what_is_far_away_is_asked_for_with_the_first_look_and_waited_for() -> None:
    killed = Rank(0, 0, 7, Process(alive=False, signal=9, ended_ns=steady_clock.now_ns()))
    reader = Reader(ranks=[killed])
    made = Watch(reader, Policy())
    began_s = time.monotonic()
    assert made.look().verdict is None
    assert len(reader.asked) == 1
    assert began_s <= reader.asked[0] <= time.monotonic()
    time.sleep(limits.CONFIRM_AFTER_S)
    for _ in range(3):
        assert made.look().verdict is None, "others may have the cause, and have not told"
    assert set(reader.asked) == {reader.asked[0]}, "of one finding is asked by one time"
    reader.told = True
    found = made.look().verdict
    assert found is not None
    assert (found.kind, found.culprits) == ("rank_died", (0,))


def test_what_is_told_at_once_is_confirmed_a_moment_later_all_the_same() -> None:
    killed = Rank(0, 0, 7, Process(alive=False, signal=9, ended_ns=steady_clock.now_ns()))
    reader = Reader(ranks=[killed])
    reader.told = True
    made = Watch(reader, Policy())
    began_s = time.monotonic()
    looks = 1
    while made.look().verdict is None:
        looks += 1
    assert looks > 1
    assert time.monotonic() - began_s >= limits.CONFIRM_AFTER_S
