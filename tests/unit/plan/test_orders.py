"""The orders of made-up programs, compared with all interleavings of their events."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from distdebug.diagnosis.facts.blocking import Model
from distdebug.plan.orders import OrderCount, explore
from distdebug.plan.program import CutOff, Program
from distdebug.plan.schedules import look_for_orders
from tests.support.programs import Programs
from tests.unit.diagnosis.builder import all_reduce, broadcast, recv, send

ANY = -1
Action = tuple[str, int, int]
"""op ("send", "recv", "isend", "irecv", "wait", "meet"), peer (of "wait": the call), tag."""
Matching = frozenset[tuple[int, int, int, int]]
"""Receiver and its call, sender and its call."""


def orders_of(rows: Sequence[Sequence[Action]], model: Model | None = None) -> OrderCount:
    return explore(programs(rows).programs(), model or Model(), math.inf)


def programs(rows: Sequence[Sequence[Action]]) -> Programs:
    made = Programs(len(rows))
    for rank, row in enumerate(rows):
        for op, peer, tag in row:
            if op == "wait":
                made[rank].waits(peer)
            elif op == "meet":
                made[rank].makes(all_reduce(8))
            else:
                signature = send(peer, 4, tag=tag) if "send" in op else recv(peer, 4, tag=tag)
                made[rank].makes(signature, is_async=op.startswith("i"))
    made.end()
    return made


@dataclass(frozen=True)
class State:
    """`at`: of each rank; `open`: calls that wait for their other side, as rank, number, in the
    order in which they came; `met`: pairs of calls; `blocked`: the call that each waits for;
    `sent`: what has not arrived."""

    at: tuple[int, ...]
    calls: tuple[int, ...]
    open: tuple[tuple[int, int, Action], ...]
    met: Matching
    blocked: tuple[int | None, ...]
    sent: tuple[tuple[int, int, Action], ...] = ()


def every_ending(rows: Sequence[Sequence[Action]]) -> dict[Matching, bool]:
    """Whether all ranks end, for each set of pairs that some interleaving of all events ends
    with. Nothing is buffered."""
    size = len(rows)
    first = State((0,) * size, (0,) * size, (), frozenset(), (None,) * size)
    seen = {first}
    todo = [first]
    found: dict[Matching, bool] = {}
    while todo:
        state = todo.pop()
        following = list(_next(rows, state))
        if not following:
            ends = all(at == len(row) for at, row in zip(state.at, rows, strict=True))
            found[state.met] = ends and not any(one is not None for one in state.blocked)
        for one in following:
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return found


def _next(rows: Sequence[Sequence[Action]], state: State) -> Iterator[State]:
    done = {row[:2] for row in state.met} | {row[2:] for row in state.met}
    heads = []
    for rank, row in enumerate(rows):
        blocked = state.blocked[rank]
        if blocked is not None and (rank, blocked) not in done:
            continue
        if state.at[rank] == len(row):
            if blocked is not None:
                yield _moved(state, rank, blocks=None, at=0, calls=0)
            continue
        op, peer, tag = row[state.at[rank]]
        heads.append(op)
        number = state.calls[rank]
        if op == "wait":
            yield _moved(state, rank, blocks=peer, at=1, calls=0)
        elif op != "meet":
            moved = _moved(state, rank, blocks=None if op[0] == "i" else number, at=1, calls=1)
            own = (rank, number, (op, peer, tag))
            if "send" in op:
                yield replace(moved, sent=(*moved.sent, own))
            else:
                yield from _met(moved, own)
    for at, own in enumerate(state.sent):
        if not any(one[0] == own[0] and one[2][1:] == own[2][1:] for one in state.sent[:at]):
            left = (*state.sent[:at], *state.sent[at + 1 :])
            yield from _met(replace(state, sent=left), own)
    if heads == ["meet"] * len(rows):
        after = tuple(at + 1 for at in state.at)
        calls = tuple(number + 1 for number in state.calls)
        yield replace(state, at=after, calls=calls, blocked=(None,) * len(rows))


def _met(state: State, own: tuple[int, int, Action]) -> Iterator[State]:
    """The call comes: with whom it may meet."""
    others = [one for one in state.open if _fits(own, one)]
    if "send" in own[2][0]:  # the receive that was posted first
        others = others[:1]
        if any(one[0] == own[0] and _same_channel(one[2], own[2]) for one in state.open):
            others = []
    firsts = {one[0]: one for one in reversed(others)}  # the first message of each source
    for other in firsts.values():
        pair = (*own[:2], *other[:2]) if "recv" in own[2][0] else (*other[:2], *own[:2])
        left = tuple(one for one in state.open if one is not other)
        yield replace(state, open=left, met=state.met | {pair})
    if not others:
        yield replace(state, open=(*state.open, own))


def _moved(state: State, rank: int, blocks: int | None, at: int, calls: int) -> State:
    def put(row, value):  # type: ignore[no-untyped-def]
        return (*row[:rank], value, *row[rank + 1 :])

    return replace(
        state,
        at=put(state.at, state.at[rank] + at),
        calls=put(state.calls, state.calls[rank] + calls),
        blocked=put(state.blocked, blocks),
    )


def _same_channel(one: Action, other: Action) -> bool:
    return "send" in one[0] and "send" in other[0] and one[1:] == other[1:]


def _fits(one: tuple[int, int, Action], other: tuple[int, int, Action]) -> bool:
    if "recv" in one[2][0]:
        one, other = other, one
    (sender, _, (sends, to, tag)), (receiver, _, (receives, source, its)) = one, other
    return (
        "send" in sends
        and "recv" in receives
        and (to, tag) == (receiver, its)
        and source in (ANY, sender)
    )


def drawn(chance: random.Random) -> list[list[Action]]:
    """Programs whose messages fit in number: what is stuck is so by the order."""
    size = chance.choice([3, 3, 4])
    rows: list[list[Action]] = [[] for _ in range(size)]
    for _ in range(chance.randint(1, 2)):
        for _ in range(chance.randint(1, 4)):
            source, to = (
                chance.sample(range(size), 2)
                if chance.random() < 0.4
                else (chance.randint(1, size - 1), 0)
            )
            tag = chance.choice([0, 0, 0, 1])
            rows[source].append(("send", to, tag))
            rows[to].append(("recv", ANY if chance.random() < 0.6 else source, tag))
        if chance.random() < 0.4:
            for row in rows:
                row.append(("meet", 0, 0))
    return [_with_waits(row, chance) for row in rows]


def _with_waits(row: list[Action], chance: random.Random) -> list[Action]:
    found: list[Action] = []
    late: list[int] = []
    for calls, (op, peer, tag) in enumerate(row):
        if op != "meet" and chance.random() < 0.2:
            found.append((f"i{op}", peer, tag))
            late.append(calls)
        else:
            found.append((op, peer, tag))
        if late and chance.random() < 0.5:
            found.append(("wait", late.pop(0), 0))
    return found + [("wait", number, 0) for number in late]


@pytest.mark.parametrize("seed", range(10))
def test_what_is_found_is_what_all_interleavings_come_to(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        rows = drawn(chance)
        expected = every_ending(rows)
        found = orders_of(rows)
        stuck = sum(not well for well in expected.values())
        assert bool(found.stuck) == bool(stuck), rows
        if found.exact:
            assert (found.total, found.stuck) == (len(expected), stuck), rows
        else:
            assert found.total <= len(expected), rows
            assert found.stuck <= stuck, rows


def test_independent_groups_and_phases_of_64_ranks_do_not_multiply() -> None:
    meet = ("meet", 0, 0)
    farms = [
        [("recv", ANY, 0)] * 3 + [meet] if rank % 4 == 0 else [("send", rank // 4 * 4, 0), meet]
        for rank in range(64)
    ]
    found = orders_of(farms)
    assert (found.total, found.stuck, found.exact) == (math.factorial(3) ** 16, 0, True)
    phases: list[list[Action]] = [([("recv", ANY, 0)] * 63 + [meet]) * 2]
    phases += [[("send", 0, 0), meet] * 2 for _ in range(63)]
    found = orders_of(phases)
    assert (found.total, found.stuck, found.exact) == (math.factorial(63) ** 2, 0, True)


def test_opposite_sends_are_stuck_unless_they_are_buffered() -> None:
    rows: list[list[Action]] = [[("send", 1, 0), ("recv", 1, 0)], [("send", 0, 0), ("recv", 0, 0)]]
    found = orders_of(rows, Model(buffered_bytes=64))
    assert (found.total, found.stuck, found.exact) == (2, 1, True)
    assert orders_of(rows).stuck == orders_of(rows).total == 1


STOLEN: list[list[Action]] = [
    [("recv", ANY, 0), ("recv", 1, 0), ("meet", 0, 0)],
    [("send", 0, 0), ("meet", 0, 0)],
    [("send", 0, 0), ("meet", 0, 0)],
]


def planned_as(*sources: int) -> dict[int, Program]:
    """STOLEN, as it is planned where its receive takes the message of the first of these."""
    found = programs(STOLEN).programs()
    return {**found, 0: replace(found[0], came_from={0: sources[0]})}


def test_an_order_is_told_of_when_it_was_planned() -> None:
    asked: list[Sequence[str]] = []

    def plan_again(faults: Sequence[str]) -> dict[int, Program]:
        asked.append(faults)
        return planned_as(1)

    found = look_for_orders(planned_as(2), Model(), plan_again, math.inf)
    assert asked == [("hold(rank=2, until=0, call=1) @ call 0",)] == [found.faults]
    assert found.judgement is not None
    verdict = found.judgement.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.culprits, verdict.proven) == ("deadlock", (0, 1), True)
    assert verdict.message.startswith("in 1 of 2 orders: ")
    assert any(line.endswith(f"--inject '{asked[0][0]}'") for line in verdict.details)


def test_of_a_program_that_does_something_else_then_nothing_is_told() -> None:
    """It receives from the other one, whoever was first."""
    other = [list(row) for row in STOLEN]
    other[0][1] = ("recv", 2, 0)

    def plan_again(faults: Sequence[str]) -> dict[int, Program]:
        if "hold(rank=1" in faults[0]:
            return planned_as(2)
        found = programs(other).programs()
        return {**found, 0: replace(found[0], came_from={0: 1})}

    found = look_for_orders(planned_as(2), Model(), plan_again, math.inf)
    assert found.depends
    assert found.judgement is None


def test_what_was_planned_in_vain_is_planned_in_another_order() -> None:
    """The plan met the order in which the second receive gets nothing."""
    whole = planned_as(1)
    cut = CutOff("it waits for a message that never comes", stuck=True)
    short = {**whole, 0: replace(whole[0], events=(*whole[0].events[:2], cut))}
    again = iter([planned_as(2), short])
    found = look_for_orders(short, Model(), lambda _: next(again), math.inf)
    assert (found.count.total, found.count.stuck, found.count.exact) == (2, 1, True)
    assert found.judgement is not None
    assert found.judgement.verdict is not None
    assert found.judgement.verdict.kind == "deadlock"


def test_a_receive_that_nobody_has_waited_for_cannot_have_changed_anything() -> None:
    """A plan has it take its message later than a run may."""
    rows: list[list[Action]] = [
        [("irecv", ANY, 0), ("recv", 1, 0), ("wait", 0, 0), ("meet", 0, 0)],
        *STOLEN[1:],
    ]
    made = programs(rows).programs()
    made[0] = replace(made[0], came_from={0: 2})
    found = look_for_orders(made, Model(), lambda _: made, math.inf)
    holds = ["hold(rank=0, until=1, call=1) @ call 1", "hold(rank=2, until=1, call=1) @ call 0"]
    assert [*found.faults] == holds
    assert found.judgement is not None
    assert found.judgement.verdict is not None
    assert found.judgement.verdict.kind == "deadlock"


def test_nothing_is_told_where_ranks_are_stuck_because_one_is_held() -> None:
    held = CutOff("it waits for a key that nobody sets", stuck=True)

    def plan_again(_faults: Sequence[str]) -> dict[int, Program]:
        found = planned_as(1)
        return {**found, 2: replace(found[2], events=(held,))}

    other = [list(row) for row in STOLEN]
    other[0][1:1] = [("recv", 2, 0)]
    other[2][1:1] = [("send", 0, 0)]
    made = programs(other).programs()
    made[0] = replace(made[0], came_from={0: 2})
    found = look_for_orders(made, Model(), plan_again, math.inf)
    assert found.depends
    assert found.judgement is None


def asked(over: bool, until: bool = False) -> dict[int, Program]:
    """Rank 0 asks whether a sum is `over`, and receives first if it is. `until`: rank 1 makes the
    sum when it has received."""
    made = Programs(2)
    number = made[0].makes(all_reduce(8), is_async=True)
    if over:
        made[0].waits(number)
    ways = [recv(1, 4), send(1, 4)]
    for signature in ways if over else reversed(ways):
        made[0].makes(signature)
    made[0].waits(number)
    if not until:
        made[1].makes(all_reduce(8))
    made[1].makes(recv(0, 4))
    if until:
        made[1].makes(all_reduce(8))
    made[1].makes(send(0, 4))
    made.end()
    found = made.programs()
    return {**found, 0: replace(found[0], asked=frozenset({number}))}


def test_what_a_rank_does_that_finds_its_call_over_is_planned() -> None:
    found = look_for_orders(asked(False), Model(), lambda _: asked(True), math.inf)
    assert found.faults == ("finish(rank=0) @ call 0",)
    assert found.judgement is not None
    verdict = found.judgement.verdict
    assert verdict is not None
    assert (verdict.kind, verdict.culprits) == ("deadlock", (0, 1))
    assert verdict.message.startswith("in 1 of 2 orders that were planned: ")


@pytest.mark.parametrize(("until", "over"), [(True, True), (False, False)])
def test_a_call_that_cannot_be_over_or_whose_end_changes_nothing(until: bool, over: bool) -> None:
    found = look_for_orders(asked(False, until), Model(), lambda _: asked(over, until), math.inf)
    assert (found.judgement, found.planned, found.depends) == (None, 1, False)


def test_nobody_asks_gloo_whether_a_message_is_over() -> None:
    rows: list[list[Action]] = [[("isend", 1, 0), ("wait", 0, 0)], [("recv", 0, 0)]]
    made = programs(rows).programs()
    made[0] = replace(made[0], asked=frozenset({0}))
    found = look_for_orders(made, Model(), lambda _: pytest.fail("planned again"), math.inf)
    assert found.judgement is None


def two_threads(swapped: bool, behind: bool = False) -> dict[int, Program]:
    """A thread of rank 0 makes a broadcast, as the others do after their sum; `behind`: once it has
    received what rank 1 sends after that sum."""
    made = Programs(2)
    main = [(all_reduce(8), 0, 88)]
    other = [(recv(1, 4), 1, 89)] if behind else []
    other.append((broadcast(8), 1, 90))
    for signature, thread, line in [*other, *main] if swapped else [*main, *other]:
        made[0].makes(signature, thread=thread, line=line)
    made[1].makes(all_reduce(8))
    if behind:
        made[1].makes(send(0, 4))
    made[1].makes(broadcast(8))
    made.end()
    return made.programs()


def test_the_other_one_of_two_threads_comes_first() -> None:
    found = look_for_orders(two_threads(False), Model(), lambda _: two_threads(True), math.inf)
    assert found.faults == ("hold(rank=0, until=0, call=1) @ call 0",)
    assert found.judgement is not None
    assert found.judgement.verdict is not None
    assert found.judgement.verdict.kind == "op_mismatch"
    assert any("which another thread makes" in line for line in found.judgement.verdict.details)


def test_a_thread_that_other_ranks_keep_behind_does_not_come_first() -> None:
    """Nor does one that waits for the main thread: then that one stays in the `hold`."""
    held = two_threads(False)
    cut = CutOff("it waits for a key that nobody sets", stuck=True)
    held[0] = replace(held[0], events=(cut,))
    for made, again in ((two_threads(False, True), two_threads(True, True)), (held, held)):
        found = look_for_orders(made, Model(), lambda _, again=again: again, math.inf)
        assert found.judgement is None
    found = look_for_orders(two_threads(False), Model(), lambda _: held, math.inf)
    assert (found.judgement, found.depends) == (None, False)


Threads = Sequence[Sequence[int]]
"""Of a rank: the sizes of the sums that each of its two threads makes, in one group."""


def in_order(rows: Sequence[Threads], faults: Sequence[str]) -> dict[int, Program]:
    """The programs of ranks whose main thread goes first, but where it is held."""
    made = Programs(len(rows))
    holds: dict[tuple[int, int], int] = {}
    for fault in faults:
        rank, until, its, call = map(int, re.findall(r"\d+", fault))
        assert rank == until
        holds[rank, call] = its
    for rank, threads in enumerate(rows):
        at, arrived = [0] * len(threads), 0
        held: dict[int, int] = {}
        while True:
            able = (
                one
                for one, row in enumerate(threads)
                if at[one] < len(row) and held.get(one, -1) < arrived
            )
            thread = next(able, None)
            if thread is None:
                break
            if thread not in held:
                arrived += 1
                if (rank, arrived - 1) in holds:
                    held[thread] = holds[rank, arrived - 1]
                    continue
            held.pop(thread, None)
            size = threads[thread][at[thread]]
            made[rank].makes(all_reduce(size), thread=thread, line=10 * thread + at[thread])
            at[thread] += 1
    made.end()
    return made.programs()


def merges(threads: Threads) -> set[tuple[int, ...]]:
    """All orders of the calls of two threads."""
    found = set()
    one, other = threads
    for places in itertools.combinations(range(len(one) + len(other)), len(one)):
        rows = (iter(one), iter(other))
        found.add(tuple(next(rows[at not in places]) for at in range(len(one) + len(other))))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_two_threads_are_told_where_any_of_their_orders_differ(seed: int) -> None:
    chance = random.Random(seed)
    main = [chance.choice([4, 8]) for _ in range(chance.randint(1, 3))]
    other = [chance.choice([4, 4, 8]) for _ in range(chance.randint(1, 2))]
    rows: list[Threads] = [
        [main, other],
        [main, other] if chance.random() < 0.3 else [[*main, *other], []],
    ]
    found = look_for_orders(
        in_order(rows, ()), Model(), lambda faults: in_order(rows, faults), math.inf
    )
    differ = len({order for threads in rows for order in merges(threads)}) > 1
    assert (found.judgement is not None) is differ, rows
