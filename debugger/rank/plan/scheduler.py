"""The scheduler of planned ranks: a few run at a time, the others wait for what only they can give.

A rank that waits for a value keeps its process, and another rank gets its place. Where the memory
does not do for all that wait, it is taken for granted that the others will give what all gave so
far (numbers that differ between ranks are not known then). Where that cannot be, or has proved
wrong, some of them are ended, and run again from their start when what they wait for is there: a
program does the same again, and is told what it was told before.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...record.limits import LOOK_EVERY_S
from ...record.writing.program_writer import program_path
from ...system import memory
from ...system.proc import read_stat
from ..limits import (
    CHECK_S,
    LONGEST_WAIT_S,
    VAIN_S,
)
from .board import Board, waits_for
from .exchange import CHUNK, LOOK, Message, Unpacker, as_bytes

_MOST_CHECKS = 50
"""The number of questions for keys that are not there, and for nothing else, after which a rank is
in a loop that waits for them: each further look is as a sleep."""

ASKS, JOINS, MOVES = "asks", "joins", "moves"
"""The main thread waits for an answer; it waits for threads that do; something may still happen."""


@dataclass(frozen=True, slots=True)
class ThreadsStanding:
    """The threads of a rank as they stand (see `standing_threads`). `doubtful`: one stands in code
    that is not known here; `site`: the line of the main thread that joins others; `slept`: the
    number of each thread, and how often it has slept so far."""

    word: str = MOVES
    doubtful: bool = False
    site: int = 0
    slept: Sequence[Sequence[int | None]] = ()


@dataclass(slots=True)
class PlannedRank:
    """A rank that has a process, or had one."""

    rank: int
    pid: int = 0
    connection: socket.socket | None = None
    unpacker: Unpacker = field(default_factory=Unpacker)
    requests: dict[int, Message] = field(default_factory=dict)
    """By number, the requests for which its threads wait; of a rank that was ended meanwhile, those
    of then."""
    of_others: set[int] = field(default_factory=set)
    """The numbers of those that are not its main thread's."""
    measure_at_s: float = 0.0
    began_s: float = 0.0
    cpu_ticks: int = -1
    slept_s: float = 0.0
    """Planned time, also by a run of it that was ended since; and what this run has asked for: the
    first so much of that is over for it already."""
    asked_s: float = 0.0
    limit_s: float = 0.0
    since_s: float = 0.0
    used_s: float = 0.0
    told_to_end_s: float = 0.0
    vain_checks: int = 0
    private_bytes: int = 0
    alone: bool = True
    """The thread that asked last is the only one of Python's."""
    stands: ThreadsStanding | None = None
    """Its last answer about its threads."""
    rests: bool = False
    """None of its threads can do anything before an answer comes."""
    runs: int = 0
    waited: int = 0

    @property
    def waits(self) -> bool:
        """Whether it waits for what others do, and does not just sleep."""
        return all(request[0][0] != "sleep" for request in self.requests.values())

    def looks_in_vain(self, words: Sequence[Any], answer: Message | None) -> bool:
        """Whether this is one more look of a loop that waits for keys."""
        if list(words[:2]) != ["store", "check"] or answer != ([False], []):
            self.vain_checks = 0
            return False
        self.vain_checks += 1
        return self.vain_checks > _MOST_CHECKS

    def say(self, number: int, answer: Message) -> None:
        """Answer the request with this number."""
        if self.connection is not None:
            with contextlib.suppress(OSError):  # it has ended, which is seen elsewhere
                self.connection.sendall(as_bytes([number, *answer[0]], answer[1]))

    def kill(self) -> None:
        """End its process, and everything that it has started; somebody has yet to wait for it."""
        self.kill_started()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)

    def kill_started(self) -> None:
        """End what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def note(self, directory: Path, row: Sequence[Any]) -> None:
        """The last line of its program, which its process could not write."""
        path = program_path(directory, self.rank)
        with contextlib.suppress(OSError):  # else its program is read as one that breaks off
            whole = not path.exists() or path.read_bytes().endswith(b"\n")
            with path.open("ab") as file:
                file.write(b"" if whole else b"\n")
                file.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def note_cut(self, directory: Path, why: str, stuck: bool) -> None:
        """Notes that nothing more is known of the rank. `stuck`: it waits for what never comes."""
        stands = (self.stands if stuck else None) or ThreadsStanding()
        self.note(directory, ["cut", why, stands.site, stuck, stands.word == JOINS])


_MOST_VAIN = 200
_FULL = "the machine's memory was full"

Fork = Callable[[int, socket.socket], int]
"""(rank, its end of the line) -> pid. Does not return in the child."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """`jobs` run at a time. All that wait may have `memory_bytes` of their own together. A rank may
    run for `time_s`."""

    jobs: int
    memory_bytes: int
    time_s: float


class Scheduler:
    """Runs the ranks of one plan, until each has ended or cannot go on. `modules` is told what the
    first rank has imported."""

    def __init__(
        self,
        directory: Path,
        ranks: list[int],
        limits: PlanLimits,
        fork: Fork,
        modules: Callable[[list[str]], None],
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._fork = fork
        self._modules = modules
        self.board = Board()
        self.by_symmetry = True
        """Whether those who have not come may be taken to give what all gave so far."""
        self._ranks = tuple(ranks)
        self._new = deque(ranks)
        self._running: dict[int, PlannedRank] = {}
        self._waiting: dict[int, PlannedRank] = {}
        self._ended_for_room: dict[int, PlannedRank] = {}
        self._selector = selectors.DefaultSelector()
        self._newest: socket.socket | None = None
        self._first = True
        self._woken_in_vain = 0
        self._in_vain: set[tuple[int, int]] = set()  # rank and number of such a sleep
        self._now_s = 0.0
        """The planned time. A rank that sleeps up to then is woken beside those that run."""
        self._moved = False  # whether a rank has done anything since this was looked at
        self._happened_s = 0.0
        """When something else than sleep was last heard of, in planned time."""
        self.ended: dict[int, int] = {}
        """The raw status of each rank's process, by rank."""
        self.cut: dict[int, str] = {}
        self._stuck: set[int] = set()
        self._kills_before = memory.out_of_memory_kills()
        self.runs = 0
        """Processes that were started."""
        self.most_waiting = 0
        self.most_bytes = 0
        """The most private memory that one rank had when it was measured."""

    def run(self) -> None:
        """Until all is over."""
        looked_s = time.monotonic()
        while True:
            self._start()
            if not self._running:
                if not (self._waiting or self._ended_for_room or self._new):
                    return
                if not self._somebody_moves() and not self._let_time_pass():
                    # Ends the ranks that are left, which wait for one another, or for what no rank
                    # gives.
                    for planned in [*self._waiting.values(), *self._ended_for_room.values()]:
                        asked = [request[0] for request in planned.requests.values()]
                        words = min(asked, key=lambda one: one[0] == "sleep", default=[])
                        self.cut[planned.rank] = waits_for(words)
                        self._stuck.add(planned.rank)
                    for planned in list(self._waiting.values()):
                        planned.kill()
                        self._reap(planned)
                    for planned in list(self._ended_for_room.values()):
                        planned.note_cut(self._directory, self.cut[planned.rank], stuck=True)
                    self._waiting.clear()
                    self._ended_for_room.clear()
                    return
                continue
            self._listen(LOOK_EVERY_S)
            if self.board.refuted:
                self._start_anew()
            now_s = time.monotonic()
            if now_s - looked_s > LOOK_EVERY_S:
                looked_s = now_s
                self._look(now_s)

    # -- starting ------------------------------------------------------------------------------

    def _start(self) -> None:
        """Give free places to those that can go on, then to those that have not begun."""
        while len(self._running) < self._limits.jobs:
            if self._continue_one() or self._restart_one():
                continue
            # The first rank runs alone: the others are to find what it has imported.
            if self._new and not (self._first and self.runs):
                self._begin(PlannedRank(self._new.popleft()))
            elif not self._wake_one(self._now_s):
                return

    def _begin(self, planned: PlannedRank) -> None:
        ours, theirs = socket.socketpair()
        self._newest = ours
        self.board.begin(planned.rank)
        self.runs += 1
        planned.runs += 1
        planned.unpacker = Unpacker()
        planned.requests, planned.of_others = {}, set()
        planned.measure_at_s = 0.0
        planned.told_to_end_s = planned.used_s = planned.asked_s = 0.0
        planned.alone, planned.rests, planned.stands = True, False, None
        planned.since_s = planned.began_s = time.monotonic()
        planned.pid = self._fork(planned.rank, theirs)
        theirs.close()
        planned.connection = ours
        self._selector.register(ours, selectors.EVENT_READ, ("line", planned))
        descriptor = os.pidfd_open(planned.pid)
        self._selector.register(descriptor, selectors.EVENT_READ, ("end", planned))
        self._running[planned.rank] = planned

    def _continue_one(self) -> bool:
        for planned in self._waiting.values():
            if self._answer_one(planned):
                del self._waiting[planned.rank]
                self._goes_on(planned)
                return True
        return False

    def _wake_one(self, before_s: float = math.inf) -> bool:
        """Wake who has slept longest, if that is up to `before_s`."""
        sleepers = [
            (planned.asked_s, planned.rank, number)
            for planned in self._waiting.values()
            for number, request in planned.requests.items()
            if request[0][0] == "sleep" and (planned.rank, number) not in self._in_vain
        ]
        if not sleepers:
            return False
        until_s, rank, number = min(sleepers)
        if until_s > before_s:
            return False
        self._now_s = max(self._now_s, until_s)
        planned = self._waiting[rank]
        in_vain = self._woken_in_vain >= _MOST_VAIN and until_s > self._happened_s + VAIN_S
        if in_vain and number in planned.of_others:
            self._in_vain.add((rank, number))  # what is for itself, such as a watch
            return True
        del self._waiting[rank]
        request = planned.requests.pop(number)
        planned.slept_s = max(planned.slept_s, until_s)
        self._woken_in_vain += 1
        if in_vain:
            self.cut[rank] = "it asks and sleeps again and again, and nothing comes of it"
            planned.kill()
            self._running[rank] = planned  # until its end is seen
            return True
        asked = request[0][2:]  # where it only looks again and again
        answer = self.board.answer(rank, asked, request[1]) if asked else None
        self._goes_on(planned)
        planned.say(number, answer or ([], []))
        return True

    def _answer_one(self, planned: PlannedRank) -> bool:
        for number, request in planned.requests.items():
            if request[0][0] == "sleep":
                continue
            answer = self.board.answer(planned.rank, *request)
            if answer is not None:
                del planned.requests[number]
                planned.say(number, answer)
                return True
        return False

    def _goes_on(self, planned: PlannedRank) -> None:
        planned.since_s = time.monotonic()
        planned.cpu_ticks = -1
        planned.rests, planned.stands = False, None
        self._running[planned.rank] = planned

    def _restart_one(self) -> bool:
        for planned in self._ended_for_room.values():
            requests = planned.requests.values()
            if any(self.board.could_answer(planned.rank, *one) for one in requests):
                del self._ended_for_room[planned.rank]
                self._begin(planned)
                return True
        return False

    # -- hearing -------------------------------------------------------------------------------

    def _hear(self, planned: PlannedRank) -> None:
        if planned.connection is None:
            return  # its end was seen before what it said last
        try:
            data = planned.connection.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(planned.connection)
            planned.connection.close()
            planned.connection = None
            return
        for words, values in planned.unpacker.feed(data):
            self._told(planned, words, values)

    def _told(self, planned: PlannedRank, words: list[Any], values: list[bytes | None]) -> None:
        number, words = words[0], words[1:]
        if words[0] == "stands":
            planned.stands = ThreadsStanding(*words[1:])
            return
        if number >= 0:
            planned.alone, is_main, *words = words
            if not is_main:
                planned.of_others.add(number)
        planned.rests, planned.stands = False, None
        self._moved = True
        if words[0] != "sleep" and words[:2] != ["store", "check"]:
            self._woken_in_vain = 0
            self._in_vain.clear()
            self._happened_s = max(self._happened_s, planned.slept_s)
        if words[0] in ("offer", "send", "expect", "remember"):
            self.board.told(planned.rank, words, values)
        elif words[0] == "limit":
            planned.limit_s = float(words[1])
        elif words[0] == "modules":
            if self._first:
                self._modules([str(name) for name in words[1:]])
            self._first = False
        else:
            answer: Message | None = None
            if words[0] == "sleep":
                planned.asked_s += float(words[1])
                if planned.asked_s <= planned.slept_s:
                    answer = [], []
            else:
                answer = self.board.answer(planned.rank, words, values)
            if planned.looks_in_vain(words, answer):
                planned.asked_s += CHECK_S
                planned.requests[number] = (["sleep", CHECK_S, *words], values)
                self._park(planned)
            elif answer is not None:
                planned.say(number, answer)
            else:
                planned.requests[number] = (words, values)
                self._park(planned)

    def _park(self, planned: PlannedRank) -> None:
        """Parks a rank that cannot go on for now, or one of whose threads cannot."""
        if planned.rank not in self._running:
            return
        planned.waited += 1
        planned.used_s += time.monotonic() - planned.since_s
        del self._running[planned.rank]
        self._waiting[planned.rank] = planned
        self._first = False
        # Looking takes ten milliseconds, a rank may wait at each of its steps, and one that has
        # come far needs what it needs: each look is at twice the age of the last, the first after
        # two seconds.
        now_s = time.monotonic()
        if now_s >= planned.measure_at_s:
            planned.measure_at_s = now_s + max(2.0, now_s - planned.began_s)
            planned.private_bytes = memory.private_bytes(planned.pid)
            self.most_bytes = max(self.most_bytes, planned.private_bytes)
        self.most_waiting = max(self.most_waiting, len(self._waiting))
        held = sum(one.private_bytes for one in self._waiting.values())
        while held > self._limits.memory_bytes and len(self._waiting) > 1:
            # Who sleeps may be the one that all others wait for.
            if (planned.waits and self._wake_one()) or self._assume():
                break
            # Not who sleeps: it need not wait for anything that others have yet to do.
            latest = next((one for one in reversed(self._waiting.values()) if one.waits), None)
            if latest is None:
                break
            held -= latest.private_bytes
            del self._waiting[latest.rank]
            self._ended_for_room[latest.rank] = latest
            latest.kill()
            self._reap(latest)

    def _assume(self) -> bool:
        """Whether some of those that wait can go on, as all who have come so far gave the same."""
        if not self.by_symmetry:
            return False
        found = [
            self.board.assume(words)
            for planned in self._waiting.values()
            for words, _ in planned.requests.values()
        ]
        return any(found)

    def _start_anew(self) -> None:
        """Starts all ranks again, without assumptions: one gave something else than was assumed."""
        self.by_symmetry = False
        for planned in [*self._running.values(), *self._waiting.values()]:
            self._ended_for_room[planned.rank] = planned  # nothing is noted of their ends
            planned.kill()
            self._reap(planned)
        for known in (self._running, self._waiting, self._ended_for_room, self.ended, self.cut):
            known.clear()
        self._stuck.clear()
        self.board = Board()
        self._now_s = self._happened_s = 0.0
        self._new = deque(self._ranks)

    # -- ending --------------------------------------------------------------------------------

    def _reap(self, planned: PlannedRank) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data[0] == "end" and key.data[1] is planned:
                self._selector.unregister(key.fileobj)
                os.close(key.fd)
        # What it said last is still on the line, which children that it has left hold open.
        if planned.connection is not None:
            planned.connection.setblocking(False)
        while planned.connection is not None:
            self._hear(planned)
        try:
            _, status = os.waitpid(planned.pid, 0)
        except ChildProcessError:
            status = 0
        self._running.pop(planned.rank, None)
        self._first = False
        if planned.rank in self._ended_for_room:
            return
        if planned.rank in self._waiting and planned.rank not in self.cut:
            del self._waiting[planned.rank]
        planned.kill_started()
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL and memory.out_of_memory_kills() > self._kills_before:
            # All ranks are on this machine together, which none of them would be in a run.
            self.cut.setdefault(planned.rank, _FULL)
        if planned.rank in self.cut:
            why, stuck = self.cut[planned.rank], planned.rank in self._stuck
            planned.note_cut(self._directory, why, stuck)
            return
        self.ended[planned.rank] = status
        planned.note(self._directory, ["ended", *((code, None) if code >= 0 else (None, -code))])

    def _look(self, now_s: float) -> None:
        """At those that run: whose time is up, and whether the memory is."""
        for planned in list(self._running.values()):
            if planned.requests and not self._answer_one(planned):
                # One of its threads waits; whether the others do anything is seen by the clock.
                stat = read_stat(planned.pid)
                ticks = stat.cpu_ticks if stat is not None else 0
                if ticks == planned.cpu_ticks:
                    self._park(planned)
                    continue
                planned.cpu_ticks = ticks
            used_s = planned.used_s + now_s - planned.since_s
            # A second is enough for a rank to end that was told to.
            if planned.told_to_end_s and now_s - planned.told_to_end_s > 1.0:
                self.cut.setdefault(planned.rank, f"it ran for {self._limits.time_s:g} s")
                planned.kill()
            elif used_s > self._limits.time_s and not planned.told_to_end_s:
                planned.told_to_end_s = now_s
                try:
                    os.kill(planned.pid, signal.SIGXCPU)  # it puts its line on record
                except ProcessLookupError:
                    pass
        if self._running and memory.is_short():
            largest = max(self._running.values(), key=lambda one: memory.private_bytes(one.pid))
            self.cut.setdefault(largest.rank, _FULL)
            largest.kill()

    def _let_time_pass(self) -> bool:
        """Lets time pass when no rank can go on: a sleeping rank is woken, and when none sleeps,
        waits for keys come to their time limit, the shortest one first. False where no wait has
        one."""
        if self._wake_one():
            return True
        timed = [
            (planned.limit_s, planned.rank, number)
            for planned in self._waiting.values()
            for number, request in planned.requests.items()
            if request[0][:2] in (["store", "wait"], ["store", "get"])
            and 0 < planned.limit_s <= LONGEST_WAIT_S
        ]
        if not timed:
            return False
        _, rank, number = min(timed)
        planned = self._waiting.pop(rank)
        del planned.requests[number]
        self._goes_on(planned)
        planned.say(number, self.board.timed_out(rank))
        return True

    def _somebody_moves(self) -> bool:
        """Whether a rank that waits may yet do something by another of its threads, or has done so.
        Those that may are given their time, as all that run."""
        unsure = [one for one in self._waiting.values() if not (one.alone or one.rests)]
        if not self._stand_still(unsure, 0.0):
            return True
        before = {one.rank: one.stands for one in unsure}
        doubtful = any(one.stands is not None and one.stands.doubtful for one in unsure)
        if not self._stand_still(unsure, LOOK_EVERY_S if doubtful else 0.0):
            return True
        for one in unsure:
            found = one.stands or ThreadsStanding()
            one.rests = found == before[one.rank] and found.word != MOVES
            if not one.rests:
                del self._waiting[one.rank]
                self._goes_on(one)
        return bool(self._running)

    def _stand_still(self, unsure: list[PlannedRank], after_s: float) -> bool:
        """Have these say where their threads stand, after some time. False where any rank has done
        anything else meanwhile."""
        self._moved = False
        self._listen(after_s)
        for one in unsure:
            one.stands = None
            one.say(LOOK, ([], []))
        until_s = time.monotonic() + self._limits.time_s
        while any(one.stands is None for one in unsure) and time.monotonic() < until_s:
            if self._moved:
                return False
            self._listen(LOOK_EVERY_S)
        return not self._moved

    def _listen(self, longest_s: float) -> None:
        """To whoever says something, or ends."""
        for key, _ in self._selector.select(longest_s):
            planned: PlannedRank = key.data[1]
            if key.data[0] == "line":
                self._hear(planned)
            else:
                self._moved = True
                self._reap(planned)

    def drop_lines(self) -> None:
        """This is a rank: the lines of the others are not its own; nor is the other end of its own,
        or it would not see that this process has gone."""
        if self._newest is not None:
            self._newest.close()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()

    def close(self) -> None:
        """End whoever is left."""
        for planned in [*self._running.values(), *self._waiting.values()]:
            planned.kill()
