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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ..diagnosis.facts.blocking import Model
from ..diagnosis.limits import SECOND_NS
from ..record.signature import ANY_SOURCE
from ..record.snapshot import Call, Note
from .limits import MOST_STATES
from .meetings import MeetingPlace, Posted
from .program import Ended, Made, Program, Waited
from .simulation import PlannedThread, Simulation


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
        is_behind = self._sends.get((destination, tag), {}).get(source)
        if not row or is_behind or (first and first[0].order < row[0].order):
            return None
        return row.popleft()

    def send_for(self, source: int, destination: int, tag: int) -> Posted | None:
        if source == ANY_SOURCE or self._receives.get((destination, tag, ANY_SOURCE)):
            return None
        return super().send_for(source, destination, tag)

    def undecided(self) -> list[tuple[int, int]]:
        """The destinations and tags where a receive from any source waits."""
        return [row[:2] for row, queue in self._receives.items() if row[2] == ANY_SOURCE and queue]

    def arrived(self, destination: int, tag: int) -> dict[int, Sequence[Posted]]:
        """The messages that wait there, by source, in the order of ranks."""
        by_source = self._sends.get((destination, tag), {})
        return {source: queue for source, queue in sorted(by_source.items()) if queue}

    def pending(self, destination: int, tag: int) -> Sequence[Posted]:
        """The receives from any source that wait there."""
        return self._receives.get((destination, tag, ANY_SOURCE), ())

    def naming(self, destination: int, tag: int, source: int) -> Sequence[Posted]:
        """The receives from this source that wait there."""
        return self._receives.get((destination, tag, source), ())

    def take(self, destination: int, tag: int, source: int) -> Iterator[tuple[Posted, Posted]]:
        """The first receive from any source takes the source's first message. Yields all receives
        and sends that meet by it."""
        wanted = self._receives[destination, tag, ANY_SOURCE]
        pairs = [(wanted.popleft(), source)]
        limit = wanted[0].order if wanted else math.inf
        for (to, with_tag, one), queue in self._receives.items():
            if (to, with_tag) == (destination, tag) and one != ANY_SOURCE:
                pairs += [(posted, one) for posted in queue if posted.order < limit]
        for receive, one in pairs:
            sent = super().send_for(one, destination, tag)
            if sent is not None:
                if one != source or receive is not pairs[0][0]:
                    self._receives[destination, tag, one].popleft()
                yield receive, sent

    def state(self) -> Hashable:
        """Returns what is open in it."""
        sends = tuple(
            (where, source, len(queue), sum(bool(one.end.done_ns) for one in queue))
            for where, by_source in sorted(self._sends.items())
            for source, queue in sorted(by_source.items())
            if queue
        )
        receives = sorted((where, len(queue)) for where, queue in self._receives.items() if queue)
        return sends, tuple(receives)


@dataclass(frozen=True, slots=True)
class OrderStep:
    """A step is one of `ways` to go on where all stand still. `source`: whose message the first
    receive from any source of `destination` takes, with this tag in this place of the
    simulation's; None: none of those that are there. Without a place see `STAY`, `BUFFER`, `LEAVE`.
    `orders`: by how many there are more, since others are equivalent to it; at least, unless
    `exact`."""

    place: int = -1
    destination: int = -1
    tag: int = 0
    source: int | None = None
    ways: int = 1
    orders: Fraction = Fraction(1)
    exact: bool = True

    @property
    def stays(self) -> bool:
        """Whether nobody goes on after it."""
        return self.place < 0 and self.tag == STAY.tag


STAY, BUFFER, LEAVE = (OrderStep(tag=tag) for tag in range(3))
"""Nothing is buffered, and nobody goes on; the sends that wait are buffered; ranks end that have
messages under way."""


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


class MostSends:
    """An upper bound of what can be sent: no send waits, nor a receive from any source but one, and
    a message is for each receive that it may be for."""

    def __init__(self, programs: Mapping[int, Program], model: Model) -> None:
        self._model = replace(model, buffered_bytes=sys.maxsize)
        self._programs = dict(programs)
        self._known: dict[tuple[int, int], Simulation] = {}
        self._all = Counter(
            (event.call.group, rank, event.call.signature.peer, event.call.signature.tag)
            for rank, program in programs.items()
            for event in program.events
            if isinstance(event, Made) and event.call.signature.op == "send"
        )
        for rank, program in programs.items():
            self._programs[rank] = self._without(program, None)

    @staticmethod
    def _without(program: Program, kept: int | None) -> Program:
        """The program without receives from any source but one, which never ends."""
        numbers = {
            event.call.number
            for event in program.events
            if isinstance(event, Made) and is_any(event.call) and event.call.number != kept
        }
        events = []
        for event in program.events:
            if isinstance(event, Made) and event.call.number == kept:
                signature = replace(event.call.signature, tag=-1)
                event = replace(event, call=replace(event.call, signature=signature))
            number = event.call.number if isinstance(event, Made) else None
            number = event.number if isinstance(event, Waited) else number
            if number not in numbers:
                events.append(event)
        return replace(program, events=events, came_from={})

    def sends(
        self, place: MeetingPlace, destination: int, tag: int, before: tuple[Program, int] | None
    ) -> dict[int, int]:
        """Returns how often each rank sends there at most: in all, or before the destination's
        receive with this number in its program is over."""
        if before is None:
            return {
                rank: count
                for rank in self._programs
                if (count := self._all[place.key, rank, destination, tag])
            }
        program, number = before
        simulation = self._known.get((destination, number))
        if simulation is None:
            programs = {**self._programs, destination: self._without(program, number)}
            simulation = self._known[destination, number] = Simulation(
                programs, self._model, SECOND_NS
            )
            simulation.run()
        where = (place.key, "send", destination, tag)
        return {
            number: rank.channels[where].issued
            for number, rank in simulation.ranks.items()
            if where in rank.channels
        }


class OpenSimulation(Simulation):
    """An execution that stands still where more than one thing may happen."""

    place_type = OpenPlace

    def __init__(self, programs: Mapping[int, Program], model: Model, reach: MostSends) -> None:
        self._leaving: list[PlannedThread] = []
        self._slept: dict[tuple[int, int], frozenset[int]] = {}
        """The sources whose messages a receive, by rank and call, does not take."""
        self.taken: dict[tuple[int, int], int] = {}
        """The source of what each receive from any source has taken, by rank and call."""
        self.held: dict[tuple[int, int], tuple[int, int]] = {}
        """The calls, by rank and number, that come after one of another rank in a run like it."""
        programs = {rank: replace(one, came_from={}) for rank, one in programs.items()}
        super().__init__(programs, model, SECOND_NS)
        self.places = [one for one in self._places.values() if isinstance(one, OpenPlace)]
        self._reach = reach

    def _end(self, thread: PlannedThread, doing: Ended) -> bool:
        if thread.rank.posted and not thread.yielded:
            thread.yielded = True
            self._leaving.append(thread)
            return False
        return super()._end(thread, doing)

    def choices(self) -> list[OrderStep]:
        """Returns what may happen now that all stand still: nothing at the end of an order, nor
        where there is none, since a receive has not taken what it must take."""
        able = []
        impossible = False
        for number, place in enumerate(self.places):
            for destination, tag in place.undecided():
                slept = self._slept.get((destination, place.pending(destination, tag)[0].number))
                arrived = place.arrived(destination, tag)
                sources = [one for one in arrived if one not in (slept or ())]
                impossible = impossible or len(sources) < len(arrived)
                if sources:
                    able.append((number, place, destination, tag, sources, arrived))
        several: list[OrderStep] = []
        for number, place, destination, tag, sources, arrived in able:
            step = OrderStep(number, destination, tag, sources[0])
            fits = self._take_all(place, destination, tag)
            if fits is not None and len(sources) == len(arrived):
                queues = [*map(len, arrived.values())]
                orders = Fraction(sum(queues), queues[0]) if fits else Fraction(1)
                return [replace(step, orders=orders, exact=fits)]
            more = int(self._others_may_come(place, destination, tag))
            ways = len(sources) + more
            found = [replace(step, source=one, ways=ways) for one in sources]
            if not more:
                return found
            several = several or [*found, replace(step, source=None, ways=ways)]
        if several:
            return several
        if any(self._is_awaited(one) for place in self.places for one in place.fitting):
            return [BUFFER] if impossible else [replace(one, ways=2) for one in (STAY, BUFFER)]
        return [LEAVE] if self._leaving and not impossible else []

    @property
    def possible(self) -> bool:
        """Whether this is an order, at its end."""
        return all(
            slept.isdisjoint(place.arrived(destination, tag))
            for place in self.places
            for destination, tag in place.undecided()
            if (slept := self._slept.get((destination, place.pending(destination, tag)[0].number)))
        )

    def take(self, step: OrderStep) -> None:
        """Lets that happen; nothing goes on before `run`."""
        if step.place < 0:
            for place in self.places if step.tag == BUFFER.tag else ():
                for sent in place.fitting:
                    self._over(sent)
                place.fitting.clear()
            for thread in self._leaving if step.tag == LEAVE.tag else ():
                self._runnable.push(thread)
            self._leaving = [] if step.tag == LEAVE.tag else self._leaving
            return
        place = self.places[step.place]
        receive = place.pending(step.destination, step.tag)[0]
        arrived = place.arrived(step.destination, step.tag)
        own = (step.destination, receive.number)
        if step.source is None:
            self._slept[own] = frozenset(arrived)
            return
        if step.ways > 1:
            others = [one[0] for rank, one in arrived.items() if rank != step.source]
            self._hold(others, own, arrived[step.source][0])
            # gloo gives it to one that names its source, though that was posted later.
            taken = arrived[step.source][0]
            after = self._next_call(taken.rank, taken.number, at_once=False)
            for one in place.naming(step.destination, step.tag, step.source):
                if after is not None:
                    self.held[one.rank, one.number] = (taken.rank, after)
        self._slept.pop(own, None)
        self.taken[own] = step.source
        for pair in place.take(step.destination, step.tag, step.source):
            for one in (*pair, *place.buffered(pair[1], place.room_bytes)):
                self._over(one)

    def _over(self, posted: Posted) -> None:
        if not posted.end.done_ns:
            self._runnable.over(posted.end, self.now_ns)

    def _is_awaited(self, sent: Posted) -> bool:
        return not sent.end.done_ns and self._runnable.is_awaited(sent.end)

    def _hold(self, sent: Sequence[Posted], receive: tuple[int, int], taken: Posted) -> None:
        """These messages come after the receive has taken its own: its rank makes its next call
        then, if it waits for that, else the sender, if it does."""
        own = self._next_call(*receive, at_once=True)
        if own is None and (after := self._next_call(taken.rank, taken.number, at_once=True)):
            receive, own = (taken.rank, taken.number), after
        own = own or self._next_call(*receive, at_once=False)
        if own is None:
            return
        for one in sent:
            self.held[one.rank, one.number] = (receive[0], own)

    def _next_call(self, number: int, call: int, *, at_once: bool) -> int | None:
        """Returns the number of the next call that this rank makes after this one of its calls is
        over; None where there is none, or (`at_once`) where no thread waits for that now."""
        rank = self.ranks[number]
        for thread in self.threads[number]:
            over = thread.stop is not None and thread.stop.number == call
            following = len(rank.calls)
            for doing in thread.doings[thread.at :] if over or not at_once else ():
                if isinstance(doing, Waited) and rank.own_number(doing.number) == call:
                    over = True
                elif isinstance(doing, Made) and over:
                    return following
                following += isinstance(doing, Made)
        return None

    def _before(self, destination: int, receive: Posted) -> tuple[Program, int]:
        rank = self.ranks[destination]
        return rank.program, rank.calls[receive.number].number

    def _others_may_come(self, place: OpenPlace, destination: int, tag: int) -> bool:
        """Whether a message may come there from another source before the first receive is over."""
        arrived = place.arrived(destination, tag)
        receive = place.pending(destination, tag)[0]
        return any(
            all(self._coming(place, destination, tag, before).get(source) for before in (None, its))
            for its in [self._before(destination, receive)]
            for source in place.ranks
            if source not in arrived
        )

    def _coming(
        self, place: OpenPlace, destination: int, tag: int, before: tuple[Program, int] | None
    ) -> dict[int, int]:
        """Returns how many messages may come there still, by source (see `MostSends.sends`)."""
        where = (place.key, "send", destination, tag)
        found = {}
        for source, count in self._reach.sends(place, destination, tag, before).items():
            made = self.ranks[source].channels.get(where)
            if count > (made.issued if made is not None else 0):
                found[source] = count - (made.issued if made is not None else 0)
        return found

    def _take_all(self, place: OpenPlace, destination: int, tag: int) -> bool | None:
        """Whether the receives in a row from the first one on take all that may come to them, so
        that their order does not matter, and all of it is there; None where something may be
        left."""
        pending = place.pending(destination, tag)
        rank = self.ranks[destination]
        numbers = {rank.calls[one.number].number for one in pending}
        last = rank.calls[pending[-1].number].number
        for thread in self.threads[destination]:
            if thread.stop is None or thread.stop.number != pending[0].number:
                continue
            for doing in thread.doings[thread.at :]:
                if isinstance(doing, Made) and is_any(doing.call):
                    if (doing.call.group, doing.call.signature.tag) != (place.key, tag):
                        break
                    numbers.add(doing.call.number)
                    last = doing.call.number
                elif not isinstance(doing, Note) and not (
                    isinstance(doing, Waited) and doing.number in numbers
                ):
                    break
        here = sum(map(len, place.arrived(destination, tag).values()))
        more = sum(self._coming(place, destination, tag, None).values())
        if here + more > len(numbers):
            before = (rank.program, last)
            more = sum(self._coming(place, destination, tag, before).values())
        return None if here + more > len(numbers) else not more

    def state(self) -> Hashable:
        """Returns all that what comes depends on."""
        threads = (one for threads in self.threads.values() for one in threads)
        return (
            tuple((thread.at, thread.stop is not None) for thread in threads),
            tuple(place.state() for place in self.places),
            tuple(sorted(self._slept.items())),
        )


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


def explore(programs: Mapping[int, Program], model: Model, until_s: float) -> OrderCount:
    """Executes the orders of the programs, those with the fewest decisions that differ from the
    first one's first: all, or those that there is time for (`time.monotonic()`) and room."""
    reach = MostSends(programs, model)
    nodes: dict[Hashable, list[tuple[OrderStep, Hashable]]] = {}
    ends: dict[Hashable, tuple[int, int, int, tuple[OrderStep, ...]]] = {}
    """Of a state: orders, those that are stuck, the decisions of the shortest one, its steps."""
    unknown: tuple[OrderStep, ...] | None = None
    todo: deque[tuple[tuple[OrderStep, ...], Hashable]] = deque([((), None)])
    exact = True
    while todo and len(nodes) < MOST_STATES and (time.monotonic() < until_s or not nodes):
        steps, parent = todo.popleft()
        simulation = OpenSimulation(programs, model, reach)
        for step in steps:
            simulation.run()
            simulation.take(step)
        while True:
            simulation.run()
            stays = bool(steps) and steps[-1].stays
            state = (simulation.state(), stays)
            if steps:
                nodes[parent].append((steps[-1], state))
            if state in nodes:
                break
            nodes[state] = []
            found = [] if stays else simulation.choices()
            if not found:
                ranks = simulation.ranks.values()
                is_cut = any(rank.cut is not None for rank in ranks)
                unknown = unknown or (steps if is_cut else None)
                possible = simulation.possible
                ended = is_cut or all(rank.exit is not None for rank in ranks)
                ends[state] = (int(possible), int(possible and not ended), 0, ())
                break
            exact = exact and all(step.exact for step in found)
            todo += [((*steps, step), state) for step in found[1:]]
            simulation.take(found[0])
            steps, parent = (*steps, found[0]), state
    first = next(iter(nodes))
    total, stuck, _, shortest = _sum(first, nodes, ends)
    exact = exact and not todo and unknown is None
    return OrderCount(total, stuck, exact, shortest if stuck else None, unknown)


def _sum(
    first: Hashable,
    nodes: Mapping[Hashable, Sequence[tuple[OrderStep, Hashable]]],
    ends: dict[Hashable, tuple[int, int, int, tuple[OrderStep, ...]]],
) -> tuple[int, int, int, tuple[OrderStep, ...]]:
    """Adds up the ends of all orders from the state `first` on, into `ends`."""
    todo = [first]
    while todo:
        state = todo[-1]
        left = [one for _, one in nodes[state] if one not in ends]
        if state in ends or left:
            todo.pop() if state in ends else todo.extend(left)
            continue
        total, stuck = 0, 0
        best: tuple[int, tuple[OrderStep, ...]] | None = None
        for step, one in nodes[state]:
            its_total, its_stuck, decisions, steps = ends[one]
            total += int(step.orders * its_total)
            stuck += int(step.orders * its_stuck)
            decisions += MOST_STATES if step.stays else step.ways > 1
            if its_stuck and (best is None or decisions < best[0]):
                best = (decisions, (step, *steps))
        ends[state] = (total, stuck, *(best or (0, ())))
    return ends[first]


@dataclass(frozen=True, slots=True)
class Order:
    """An order. `programs`: with the sources of what receives from any source take; `holds`: they
    bring it about in a run; `buffered`: unless sends wait for their receives; `seen`: the sources,
    by rank and call, of what the ranks have waited for."""

    programs: Mapping[int, Program]
    holds: tuple[Hold, ...]
    buffered: bool
    seen: Mapping[tuple[int, int], int]


def follow(
    programs: Mapping[int, Program],
    model: Model,
    choose: Callable[[OpenSimulation], OrderStep | None],
) -> Order:
    """Executes the order of these choices; None ends it."""
    simulation = OpenSimulation(programs, model, MostSends(programs, model))
    buffered = True
    simulation.run()
    while (choice := choose(simulation)) is not None:
        simulation.take(choice)
        buffered = buffered and not choice.stays
        simulation.run()
    sources = {
        (rank, simulation.ranks[rank].calls[number].number): source
        for (rank, number), source in simulation.taken.items()
    }
    found = {}
    for rank, program in programs.items():
        own = {call: source for (at, call), source in sources.items() if at == rank}
        found[rank] = replace(program, came_from=own)
    seen = dict(sources)
    for rank, threads in simulation.threads.items():
        waited = {
            doing.number if isinstance(doing, Waited) else doing.call.number
            for thread in threads
            for doing in thread.doings[: thread.at]
            if isinstance(doing, Waited) or (isinstance(doing, Made) and not doing.call.is_async)
        }
        for at, call in sources:
            if at == rank and call not in waited:
                del seen[at, call]
    holds: dict[tuple[int, int, int], list[int]] = {}
    for (rank, call), after in sorted(simulation.held.items()):
        holds.setdefault((call, *after), []).append(rank)
    held = tuple(Hold(tuple(ranks), *calls) for calls, ranks in holds.items())
    return Order(found, held, buffered, seen)


def in_turn(choices: Sequence[OrderStep]) -> Callable[[OpenSimulation], OrderStep | None]:
    """For `follow`: these choices, one after the other."""
    left = iter(choices)
    return lambda _: next(left, None)


def last_first(simulation: OpenSimulation) -> OrderStep | None:
    """Returns what makes each receive take the message of the last rank, whether that matters or
    not."""
    found = simulation.choices()
    if not found or found[0].place < 0:
        return found[-1] if found else None
    one = found[0]
    arrived = simulation.places[one.place].arrived(one.destination, one.tag)
    return replace(one, source=max(arrived), ways=len(arrived))
