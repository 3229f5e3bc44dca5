"""The rings between two ranks of one host: every interleaving of three messages, on a processor
whose writes become visible late; and what is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import pytest

from distcore.transports import lane as lanes
from distcore.transports.lane import ANSWERS, BELL, HEAD, NOBODY, TAIL, TAKEN, WAITER, Lane
from distcore.transports.parcels import BUFFERED, EAGER, Parcel
from distcore.transports.peer_memory import PeerMemory

RING = 128
"""Two records: the third message waits for room, and so may an answer."""
MESSAGES = 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "RING_BYTES", RING)
    monkeypatch.setattr(lanes, "LANE_BYTES", lanes.WORDS_BYTES + RING)
    monkeypatch.setattr(os, "eventfd_write", lambda *_bell: Program.running.do("bell"))


class Reached(BaseException):
    """The program comes to a step that is not in its history yet."""


class Program:
    """One rank's part, run from its beginning: `history` is what it has read, and its first step
    behind that ends the run. So it can be stopped between any two steps without a thread."""

    running: Program
    buffers = False
    """Whether the message that is sent first fills the room of what may be buffered, and the other
    ones wait for it, and nothing else."""

    def __init__(self, sends: bool, history: tuple[Any, ...], fences: bool) -> None:
        self.history = history
        self.step: tuple[Any, ...] = ("done",)
        self.state: tuple[Any, ...] = ()
        """Where it stands: equal where it goes on alike."""
        self.got: list[int] = []
        self.accepted_numbers: list[int] = []
        self._left = iter(history)
        memories: Any = [bytearray(lanes.LANE_BYTES) for _ in range(2)]
        words = memoryview(bytearray(8)), memoryview(bytearray(8))
        self.lane = lane = Lane(memories, 0, (0, 1), PeerMemory(*words))
        lane.attach(0, self)
        lane.sender.room = 1
        lane._mine = lane._theirs = self  # type: ignore[assignment]
        lane._fence = lambda: self.do("fence") if fences else None  # type: ignore[method-assign]
        Program.running = self
        try:
            self._run(sends)
        except Reached as reached:
            trace = reached.__traceback__
            while trace is not None:
                numbers = [v for v in trace.tb_frame.f_locals.values() if isinstance(v, int)]
                self.state += (trace.tb_lineno, *numbers)
                trace = trace.tb_next
        fields = [v for v in vars(lane).values() if isinstance(v, int)]
        queues = [len(end._short) for end in (lane.sender, lane.receiver)]
        room = lane.sender.room, lane.sender.given_back
        self.state += (*fields, *queues, *room, *self.got, -1, *self.accepted_numbers)
        self.state += (bytes(lane._in),)

    def do(self, *step: Any) -> Any:
        for known in self._left:
            return known
        self.step = step
        raise Reached

    def __getitem__(self, word: int) -> int:
        value, ring = self.do("read", word)
        if word == HEAD:
            self.lane._in[:] = ring  # what lies between TAIL and HEAD does not change
        return int(value)

    def __setitem__(self, word: int, value: int) -> None:
        self.do("write", word, value, bytes(self.lane._out))

    # What a `Matching` does, where each message has its receive.
    def arrived(self, _peer: int, parcel: Parcel) -> None:
        self.got.append(parcel.number)
        parcel.total = 1  # of an empty message each answer wakes the peer
        self.lane.receiver.accept(parcel, None)

    def accepted(self, _peer: int, number: int, _taken: int) -> None:
        self.accepted_numbers.append(number)

    def has_room(self, _peer: int) -> bool:
        return self.lane.sender.has_room(1)

    def _run(self, sends: bool) -> None:
        """Both send, one of them when it has received: then the other one has let answers lie."""
        lane = self.lane
        lane.want(NOBODY)
        messages = 2 if self.buffers else MESSAGES
        left = list(range(messages if sends else 1 - self.buffers))
        expected = 1 - self.buffers if sends else messages
        while True:
            lane.pull()
            received = len(self.got) == expected
            while left and (sends or received):
                kind = BUFFERED if self.buffers and left[0] == 0 else EAGER
                lane.sender.room -= kind == BUFFERED
                lane.sender.eager(kind, left.pop(0), 0, b"", memoryview(b""))
                lane.ring()
            if lane.wants_room:
                lane.push()
            lane.ring()
            if self.buffers and sends:
                if lane.sender.room:
                    return
                whom = WAITER
            else:
                answered = len(self.accepted_numbers) == (messages if sends else 1 - self.buffers)
                if received and answered and not lane.wants_to_write:
                    return
                whom = WAITER | (ANSWERS if received else lanes.MESSAGES)
            if lanes.may_sleep([lane], whom):
                self.do("sleep")


@dataclass(frozen=True)
class Rank:
    """One rank in one state: its program, its memory, what it has written that nobody sees yet,
    and whether its bell was rung."""

    program: tuple[Any, ...]
    words: tuple[tuple[int, int], ...] = ((HEAD, 0), (TAIL, 0), (BELL, 0), (TAKEN, 0))
    ring: bytes = bytes(RING)
    unseen: tuple[tuple[int, int, bytes], ...] = ()
    rung: bool = False


def explore(fences: bool, until: str = "\0") -> tuple[int, list[str]]:
    """How many states there are, and what went wrong in them: all, or up to what begins so."""
    programs: dict[Any, Program] = {}
    after: dict[Any, tuple[Any, ...]] = {}
    wrong = []

    def program(rank: int, history: tuple[Any, ...]) -> tuple[Any, ...]:
        made = Program(rank == 0, history, fences)
        return programs.setdefault((rank, made.state), made).state

    def gone_on(rank: int, state: tuple[Any, ...], known: Any) -> tuple[Any, ...]:
        if (rank, state, known) not in after:
            history = programs[rank, state].history
            after[rank, state, known] = program(rank, (*history, known))
        return after[rank, state, known]

    start = tuple(Rank(program(rank, ())) for rank in (0, 1))
    seen, left = {start}, [start]
    while left and not (wrong and wrong[-1].startswith(until)):
        state = left.pop()
        following: list[tuple[Rank, Rank]] = []
        for rank, (own, peer) in enumerate((state, state[::-1])):
            kind, *more = programs[rank, own.program].step
            known, then, other = None, own, peer
            if kind == "read":
                known = (dict(peer.words)[more[0]], more[0] == HEAD and peer.ring)
            elif kind == "write":
                then = replace(own, unseen=(*own.unseen, tuple(more)))
            elif kind == "done" or own.unseen or (kind == "sleep" and not own.rung):
                kind = ""  # not now
            elif kind == "sleep":
                then = replace(own, rung=False)
            elif kind == "bell":
                other = replace(peer, rung=True)
            steps = []
            if kind:
                steps.append((replace(then, program=gone_on(rank, own.program, known)), other))
            if own.unseen:  # the oldest write becomes visible
                (word, value, ring), *later = own.unseen
                words = tuple((one, value if one == word else was) for one, was in own.words)
                ring = ring if word == HEAD else own.ring
                seen_now = replace(own, words=words, ring=ring, unseen=tuple(later))
                steps.append((seen_now, peer))
                if word == HEAD and value - dict(peer.words)[TAIL] > RING:
                    wrong.append("what is not read yet was overwritten")
            following += [one[:: 1 - 2 * rank] for one in steps]
        if not following:
            one, other_end = (programs[rank, state[rank].program] for rank in (0, 1))
            if one.step != ("done",) or other_end.step != ("done",):
                wrong.append(f"nobody goes on: {one.step}, {other_end.step}")
            elif other_end.got != list(range(2 if Program.buffers else MESSAGES)):
                wrong.append(f"{other_end.got} arrived")
            elif not Program.buffers and one.accepted_numbers != list(range(MESSAGES)):
                wrong.append(f"{other_end.got} arrived, {one.accepted_numbers} were accepted")
        for pair in following:
            if pair not in seen:
                seen.add(pair)
                left.append(pair)
    return len(seen), wrong


class Posted:
    """A `Matching` of which no send waits for room."""

    def has_room(self, _peer: int) -> bool:
        return True


def test_what_was_taken_is_news_once() -> None:
    """While the ring is full, and no send needs the room that it gives back: the thread that waits
    could never sleep."""
    memories: Any = [bytearray(lanes.LANE_BYTES) for _ in range(2)]
    words = memoryview(bytearray(8)), memoryview(bytearray(8))
    lane = Lane(memories, 0, (0, 1), PeerMemory(*words))
    lane.attach(0, Posted())
    for number in range(3):
        lane.sender.eager(EAGER, number, 0, b"", memoryview(b""))
    room = lane.sender.room
    memoryview(memories[1])[: lanes.WORDS_BYTES].cast("Q")[TAKEN] = 5
    assert lane.wants_to_write
    assert lane.has_news
    lane.push()
    assert lane.wants_room
    assert not lane.has_news
    assert lane.sender.room == room + 5


@pytest.mark.parametrize("buffers", [False, True])
def test_every_interleaving_of_three_messages(
    buffers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Program, "buffers", buffers)
    states, wrong = explore(fences=True)
    assert not wrong, wrong[:3]
    assert states > (300 if buffers else 1000)


def test_without_fences_a_wake_up_is_lost() -> None:
    """The twin: the exploration finds what the fences are for."""
    _states, wrong = explore(fences=False, until="nobody goes on")
    assert wrong[-1].startswith("nobody goes on")
