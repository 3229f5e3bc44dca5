"""The orders that a run may take: which message each receive from any source takes, and whether
sends that wait are buffered. All that are not equivalent are executed.

As in POE (Vakkalanka, Gopalakrishnan, Kirby: "Dynamic verification of MPI programs with reductions
in presence of split operations and relaxed orderings", CAV 2008) whatever meets in one way only
goes first, in any order; a receive from any source is decided where all stand still. Three
reductions are made there:

1. One receive is decided at a time, if nothing can send to it that has not done so: a persistent
   set (Flanagan, Godefroid: "Dynamic partial-order reduction for model checking software", POPL
   2005). So the receives of ranks that have nothing to do with each other do not multiply.
   Otherwise that it takes none of the messages that are there is one more way, with those as its
   sleep set.
2. Of receives in a row that take all messages which can come to them, one order is executed.
3. What happens after equal states happens once: the programs are straight, so that it does not
   matter which receive has taken which message.

An order is a set of equivalent executions: each receive takes the same message. Sends that wait at
one point are buffered together, or not at all.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from graphlib import TopologicalSorter

from ..diagnosis.facts.blocking import Model
from ..diagnosis.limits import SECOND_NS
from ..record.signature import ANY_SOURCE
from ..record.snapshot import Call
from .limits import MOST_STATES
from .meetings import MeetingPlace, Posted
from .program import Made, Program, Waited
from .simulation import Simulation

CallOfRank = tuple[int, int]
"""A rank, and the number of one of its calls."""
ELSEWHERE = -2
"""A rank that no plan has: what is received from it is there at once."""


class OpenPlace(MeetingPlace):
    """A group in which nothing is decided for a receive from any source as long as anybody goes
    on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fitting: list[Posted] = []
        """Sends that a backend may buffer."""
        self.room_bytes = 0

    def buffered(self, sent: Posted, room_bytes: int) -> Iterator[Posted]:
        """The sends that are over, as they send nothing; others that fit are kept in mind."""
        self.room_bytes = room_bytes
        for one in super().buffered(sent, room_bytes):
            if one.size_bytes:
                self.fitting.append(one)
            else:
                yield one

    def receive_for(self, source: int, destination: int, tag: int) -> Posted | None:
        row = self._receives.get((destination, tag, source))
        first = self._receives.get((destination, tag, ANY_SOURCE))
        if not row or (first and first[0].order < row[0].order):
            return None
        return row.popleft()

    def send_for(self, source: int, destination: int, tag: int) -> Posted | None:
        if source == ANY_SOURCE or self._receives.get((destination, tag, ANY_SOURCE)):
            return None
        return super().send_for(source, destination, tag)

    def forget(self, rank: int) -> None:
        """Forgets nothing: before the rank ends somebody else may take what it has sent."""

    def open_receives(self) -> Iterator[OpenReceives]:
        """Yields where a receive from any source waits."""
        for (destination, tag, source), pending in self._receives.items():
            if source == ANY_SOURCE and pending:
                sent = self._sends.get((destination, tag), {})
                arrived = {one: queue for one, queue in sorted(sent.items()) if queue}
                yield OpenReceives(self, destination, tag, pending, arrived)

    def naming(self, box: OpenReceives) -> dict[int, deque[Posted]]:
        """Returns the receives that wait there for one source, by that."""
        return {
            source: queue
            for (destination, tag, source), queue in self._receives.items()
            if (destination, tag) == (box.destination, box.tag) and source != ANY_SOURCE
        }

    def take(self, box: OpenReceives, source: int) -> Iterator[tuple[Posted, Posted]]:
        """The first receive from any source takes the source's first message. Yields all receives
        and sends that meet by it: those behind it that name their source come to their turn."""
        where, pending = (box.destination, box.tag), box.pending
        taken = box.arrived[source][0]
        super().send_for(source, *where)
        yield pending.popleft(), taken
        limit = pending[0].order if pending else math.inf
        for one, queue in self.naming(box).items():
            while queue and queue[0].order < limit and (sent := super().send_for(one, *where)):
                yield queue.popleft(), sent

    def state(self) -> Hashable:
        """Returns what is open in it."""
        sends = frozenset(
            (where, source, len(queue), sum(bool(one.end.done_ns) for one in queue))
            for where, by_source in self._sends.items()
            for source, queue in by_source.items()
            if queue
        )
        receives = ((where, len(queue)) for where, queue in self._receives.items() if queue)
        return sends, frozenset(receives)


@dataclass(frozen=True, slots=True)
class OpenReceives:
    """The receives from any source that wait at a rank, with one tag, and the messages that have
    come there, by source, in the order of ranks."""

    place: OpenPlace
    destination: int
    tag: int
    pending: deque[Posted]
    arrived: Mapping[int, Sequence[Posted]]

    @property
    def receive(self) -> CallOfRank:
        """The first receive, which is decided."""
        return self.destination, self.pending[0].number


@dataclass(frozen=True, slots=True)
class OrderStep:
    """A step is one of `ways` to go on where all stand still. `source`: whose message this receive
    from any source takes; None: none of those that are there. Without a receive the sends that wait
    are buffered. `orders`: by how many there are more, since others are equivalent to it; at least,
    unless `exact`."""

    receive: CallOfRank | None
    source: int | None = None
    ways: int = 1
    orders: Fraction = Fraction(1)
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Hold:
    """None of `ranks` makes its call `call` before rank `until` has come to its call `its`. All
    numbers of calls are those of their rank."""

    ranks: tuple[int, ...]
    call: int
    until: int
    its: int

    def __str__(self) -> str:
        """Returns it as `--inject` takes it."""
        ranks = str(self.ranks[0]) if len(self.ranks) == 1 else str([*self.ranks])
        return f"hold(rank={ranks}, until={self.until}, call={self.its}) @ call {self.call}"


def is_any(call: Call) -> bool:
    """Whether it is a receive from any source."""
    return call.signature.op == "recv" and call.signature.peer == ANY_SOURCE


MostSends = Callable[[int, int], Simulation]
"""Returns the execution in which that receive from any source of a rank never ends."""


def most_sends(programs: Mapping[int, Program], model: Model) -> MostSends:
    """Returns an upper bound of what can be sent before a receive from any source is over: no send
    waits, nor any other receive from any source, and a message is for each receive that it may be
    for."""
    model = replace(model, buffered_bytes=sys.maxsize)
    programs = {
        rank: replace(one, came_from={each.number: ELSEWHERE for each in filter(is_any, one.calls)})
        for rank, one in programs.items()
    }

    @cache
    def before(rank: int, number: int) -> Simulation:
        own = programs[rank]
        waits = replace(own, came_from={**own.came_from, number: rank})
        found = Simulation({**programs, rank: waits}, model, SECOND_NS)
        found.run()
        return found

    return before


class OpenSimulation(Simulation):
    """An execution that stands still where more than one thing may happen."""

    place_type = OpenPlace

    def __init__(self, programs: Mapping[int, Program], model: Model, most: MostSends) -> None:
        programs = {rank: replace(one, came_from={}) for rank, one in programs.items()}
        super().__init__(programs, model, SECOND_NS)
        self._most = most
        self._open = [one for one in self._places.values() if isinstance(one, OpenPlace)]
        self._slept: dict[CallOfRank, frozenset[int]] = {}
        """The sources whose messages a receive does not take."""
        self.taken: dict[CallOfRank, int] = {}
        """The source of what each receive from any source has taken."""
        self.held: dict[CallOfRank, CallOfRank] = {}
        """The calls that come after one of another rank in a run like it."""

    def open_receives(self) -> dict[CallOfRank, OpenReceives]:
        """Returns those of all groups, by the receive that is decided."""
        return {box.receive: box for place in self._open for box in place.open_receives()}

    @property
    def possible(self) -> bool:
        """Whether each receive has taken what it must take, so that this may be an order."""
        return all(
            self._slept.get(receive, frozenset()).isdisjoint(box.arrived)
            for receive, box in self.open_receives().items()
        )

    def choices(self) -> list[OrderStep]:
        """Returns what may happen now that all stand still: nothing at the end of an order."""
        several: list[OrderStep] = []
        for receive, box in self.open_receives().items():
            slept = self._slept.get(receive, ())
            sources = [one for one in box.arrived if one not in slept]
            if not sources:
                continue
            numbers = self._in_a_row(box)
            queues = [*map(len, box.arrived.values())]
            more = self._coming(box, numbers[-1]).total()
            if sum(queues) + more <= len(numbers) and len(sources) == len(queues):
                orders = Fraction(1) if more else Fraction(sum(queues), queues[0])
                return [OrderStep(receive, sources[0], orders=orders, exact=not more)]
            others = self._coming(box, numbers[0]).keys() - box.arrived.keys()
            ways = len(sources) + bool(others)
            found = [OrderStep(receive, one, ways) for one in sources]
            if not others:
                return found
            several = several or [*found, OrderStep(receive, None, ways)]
        if not several and self.sends_wait:
            return [OrderStep(None, ways=1 + self.possible)]
        return several

    @property
    def sends_wait(self) -> bool:
        """Whether somebody waits for a send that may be buffered."""
        return any(
            not sent.end.done_ns and self._runnable.is_awaited(sent.end)
            for place in self._open
            for sent in place.fitting
        )

    def take(self, step: OrderStep) -> None:
        """Lets that happen; nothing goes on before `run`."""
        if step.receive is None:
            for place in self._open:
                for sent in place.fitting:
                    self._over(sent)
            return
        box = self.open_receives()[step.receive]
        if step.source is None:
            self._slept[step.receive] = frozenset(box.arrived)
            return
        if step.ways > 1:
            self._hold(box, step.source)
        self._slept.pop(step.receive, None)
        self.taken[step.receive] = step.source
        for pair in box.place.take(box, step.source):
            for one in (*pair, *box.place.buffered(pair[1], box.place.room_bytes)):
                self._over(one)

    def _over(self, posted: Posted) -> None:
        if not posted.end.done_ns:
            self._runnable.over(posted.end, self.now_ns)

    def _hold(self, box: OpenReceives, source: int) -> None:
        """Other messages come after the first receive has taken that one: its rank makes its next
        call then, if it waits for that, else the sender, if it does."""
        sent = {one: (one, queue[0].number) for one, queue in box.arrived.items()}
        taken = sent.pop(source)
        after = (
            self._next_call(*box.receive, at_once=True)
            or self._next_call(*taken, at_once=True)
            or self._next_call(*box.receive, at_once=False)
        )
        if after is not None:
            self.held.update(dict.fromkeys(sent.values(), after))
        # gloo gives it to one that names its source, though that was posted later.
        after = self._next_call(*taken, at_once=False)
        for one in box.place.naming(box).get(source, ()):
            if after is not None:
                self.held[one.rank, one.number] = after

    def _next_call(self, number: int, call: int, *, at_once: bool) -> CallOfRank | None:
        """Returns the next call that this rank makes after this one of its calls is over; None
        where there is none, or (`at_once`) where no thread waits for that now."""
        rank = self.ranks[number]
        for thread in self.threads[number]:
            over = thread.stop is not None and thread.stop.number == call
            following = len(rank.calls)
            for doing in thread.doings[thread.at :] if over or not at_once else ():
                if isinstance(doing, Waited) and rank.own_number(doing.number) == call:
                    over = True
                elif isinstance(doing, Made) and over:
                    return number, following
                following += isinstance(doing, Made)
        return None

    def _in_a_row(self, box: OpenReceives) -> list[int]:
        """Returns the numbers, in their program, of the receives from any source that wait there
        and of those that come next, if the rank does nothing else before."""
        rank = self.ranks[box.destination]
        numbers = [rank.calls[one.number].number for one in box.pending]
        there = (box.place.key, box.tag)
        for thread in self.threads[box.destination]:
            if thread.stop is None or thread.stop.number != box.pending[0].number:
                continue
            for doing in thread.doings[thread.at :]:
                match doing:
                    case Made(call) if is_any(call) and (call.group, call.signature.tag) == there:
                        numbers.append(call.number)
                    case Waited(number) if number in numbers:
                        pass
                    case _:
                        break
        return numbers

    def _coming(self, box: OpenReceives, number: int) -> Counter[int]:
        """Returns how many messages may come there still, by source, before the receive with this
        number in its program is over."""
        where = (box.place.key, "send", box.destination, box.tag)
        most, now = (
            Counter({rank: sent.issued for rank, one in ranks if (sent := one.channels.get(where))})
            for ranks in (
                self._most(box.destination, number).ranks.items(),
                self.ranks.items(),
            )
        )
        return most - now

    def state(self) -> Hashable:
        """Returns all that what comes depends on."""
        threads = (one for threads in self.threads.values() for one in threads)
        return (
            tuple((thread.at, thread.stop is not None) for thread in threads),
            tuple(place.state() for place in self._open),
            tuple(sorted(self._slept.items())),
        )

    def holds(self) -> tuple[Hold, ...]:
        """Returns what brings this order about in a run."""
        ranks: dict[tuple[int, int, int], list[int]] = {}
        for (rank, call), after in sorted(self.held.items()):
            ranks.setdefault((call, *after), []).append(rank)
        return tuple(Hold(tuple(own), *calls) for calls, own in ranks.items())

    def sources(self, rank: int) -> dict[int, int]:
        """Returns whose messages the rank's receives from any source have taken, by their numbers
        in its program."""
        calls = self.ranks[rank].calls
        taken = self.taken.items()
        return {calls[number].number: source for (at, number), source in taken if at == rank}

    def seen(self, rank: int) -> dict[int, int]:
        """Returns those of these sources that the rank has waited for."""
        done = [doing for one in self.threads[rank] for doing in one.doings[: one.at]]
        waited = {doing.number for doing in done if isinstance(doing, Waited)}
        made = (doing.call for doing in done if isinstance(doing, Made))
        waited.update(call.number for call in made if not call.is_async)
        return {call: one for call, one in self.sources(rank).items() if call in waited}


@dataclass(frozen=True, slots=True)
class OrderCount:
    """The numbers of all orders, and of those in which somebody is stuck; at least, unless `exact`.
    `shortest`: the choices of one of these with the fewest decisions. `unknown`: of one after which
    not all is known of a rank."""

    total: int
    stuck: int
    exact: bool
    shortest: tuple[OrderStep, ...] | None = None
    unknown: tuple[OrderStep, ...] | None = None

    @property
    def all_stuck(self) -> bool:
        """Whether that is known of each order."""
        return self.exact and self.stuck == self.total


@dataclass(slots=True, eq=False)
class OrderState:
    """A state in which all stand still, with the steps that go on from there. `orders`: how many
    there are from it on, one of which may end in it; `stuck`: of these; `decisions` and `steps`: of
    the shortest of these."""

    following: list[tuple[OrderStep, OrderState]] = field(default_factory=list)
    orders: int = 0
    stuck: int = 0
    decisions: int = 0
    steps: tuple[OrderStep, ...] = ()


def explore(programs: Mapping[int, Program], model: Model, until_s: float) -> OrderCount:
    """Executes the orders of the programs, those with the fewest decisions that differ from the
    first one's first: all, or those that there is time for (`time.monotonic()`) and room."""
    most = most_sends(programs, model)
    states: dict[Hashable, OrderState] = {}
    unknown: tuple[OrderStep, ...] | None = None
    todo: deque[tuple[tuple[OrderStep, ...], OrderState]] = deque([((), OrderState())])
    exact = True
    while todo and len(states) < MOST_STATES and (time.monotonic() < until_s or not states):
        steps, before = todo.popleft()
        simulation = OpenSimulation(programs, model, most)
        for step in steps:
            simulation.run()
            simulation.take(step)
        while True:
            simulation.run()
            key = simulation.state()
            is_known = key in states
            state = states.setdefault(key, OrderState())
            if steps:
                before.following.append((steps[-1], state))
            if is_known:
                break
            found = simulation.choices()
            # A backend need not buffer what it may buffer: then nobody goes on.
            if simulation.possible and not any(step.receive for step in found):
                ranks = simulation.ranks.values()
                is_cut = any(rank.cut is not None for rank in ranks)
                ended = is_cut or all(rank.exit is not None for rank in ranks)
                unknown = unknown or (steps if is_cut else None)
                state.orders, state.stuck = 1, int(not ended)
            if not found:
                break
            exact = exact and all(step.exact for step in found)
            todo += [((*steps, step), state) for step in found[1:]]
            simulation.take(found[0])
            steps, before = (*steps, found[0]), state
    _add_up(states.values())
    first = next(iter(states.values()))
    return OrderCount(
        first.orders,
        first.stuck,
        exact and not todo and unknown is None,
        first.steps if first.stuck else None,
        unknown,
    )


def _add_up(states: Iterable[OrderState]) -> None:
    """Adds up the orders of each state, of which those that end in it are known."""
    graph = {state: [after for _, after in state.following] for state in states}
    for state in TopologicalSorter(graph).static_order():
        # Where sends may be buffered, that none is comes last of all.
        own = (MOST_STATES if state.following else 0, ())
        stuck: list[tuple[int, tuple[OrderStep, ...]]] = [own] * state.stuck
        for step, after in state.following:
            state.orders += int(step.orders * after.orders)
            state.stuck += int(step.orders * after.stuck)
            if after.stuck:
                stuck.append((after.decisions + (step.ways > 1), (step, *after.steps)))
        if stuck:
            state.decisions, state.steps = min(stuck, key=lambda one: one[0])


def follow(
    programs: Mapping[int, Program], model: Model, steps: Sequence[OrderStep] | None
) -> OpenSimulation:
    """Executes the order of these steps; None: that in which each receive takes the message of the
    last rank, whether that matters or not."""
    simulation = OpenSimulation(programs, model, most_sends(programs, model))
    simulation.run()
    for step in _last_first(simulation) if steps is None else steps:
        simulation.take(step)
        simulation.run()
    return simulation


def _last_first(simulation: OpenSimulation) -> Iterator[OrderStep]:
    while found := simulation.choices():
        step = found[0]
        if step.receive is not None:
            arrived = simulation.open_receives()[step.receive].arrived
            step = replace(step, source=max(arrived), ways=len(arrived))
        yield step
