"""A toy runtime: random programs on ranks and threads, random progress, snapshots taken mid-way.

A program is a list of steps in one global order, each with its participants. A rank's thread runs
its own part of the list in that order, so a consistent program can always finish, whatever the
schedule. Ranks are frozen one after the other with progress in between, as a real reader sees
them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from distdebug.diagnosis.diagnose import Diagnosis, diagnose
from distdebug.diagnosis.limits import Limits
from distdebug.record.ops import OPS
from distdebug.record.signature import ANY_SOURCE, Signature, agreement_key
from distdebug.record.snapshot import Call, Snapshot

from .builder import (
    RankBuilder,
    Run,
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    recv,
    reduce_to,
    send,
)

PATIENT = Limits(hang_timeout_s=1e9)


@dataclass(frozen=True)
class Step:
    """One call as one rank makes it."""

    group: str
    signature: Signature


@dataclass
class Thread:
    """What one thread of a rank has still to do, and the call that it waits in."""

    number: int
    todo: list[Step]
    waits: Call | None = None


@dataclass
class Program:
    """`parts[rank][thread]` is what that thread does; `groups` are global ranks by name."""

    groups: dict[str, tuple[int, ...]]
    parts: dict[int, list[list[Step]]] = field(default_factory=dict)


def random_program(rng: random.Random, *, ranks: int, steps: int, threads: int = 1) -> Program:
    """Each thread has groups of its own, as torch demands of programs with threads."""
    world = tuple(range(ranks))
    program = Program({"0": world}, {rank: [[] for _ in range(threads)] for rank in world})
    for thread in range(threads):
        names = ["0"] if thread == 0 else [f"t{thread}"]
        program.groups[names[0]] = world
        for index in range(rng.randint(0, 3)):
            name = f"t{thread}g{index}"
            size = rng.randint(1, ranks)
            program.groups[name] = tuple(sorted(rng.sample(world, size)))
            names.append(name)
        for _ in range(steps):
            name = rng.choice(names)
            members = program.groups[name]
            if rng.random() < 0.25 and len(members) > 1:
                source, target = rng.sample(members, 2)
                tag = rng.randint(0, 1) + 10 * thread
                program.parts[source][thread].append(Step(name, send(target, 4, tag=tag)))
                program.parts[target][thread].append(Step(name, recv(source, 4, tag=tag)))
                continue
            signature = random_collective(rng, members)
            for rank in members:
                program.parts[rank][thread].append(Step(name, signature))
    return program


def random_collective(rng: random.Random, members: tuple[int, ...]) -> Signature:
    size = rng.choice([4, 8])
    root = rng.choice(members)
    return rng.choice(
        [
            all_reduce(size),
            all_reduce(size, op="max"),
            all_gather(size),
            broadcast(size, root=root),
            reduce_to(size, root=root),
            barrier(),
        ]
    )


class Simulation:
    """Runs a program step by step on a `Run` of the builder."""

    def __init__(self, program: Program, rng: random.Random) -> None:
        self.rng = rng
        self.program = program
        self.run = Run(len(program.parts), limits=PATIENT)
        self.threads: dict[int, list[Thread]] = {}
        for rank, builder in self.run.ranks.items():
            for name, members in program.groups.items():
                if name != "0" and rank in members:
                    builder.has_group(name, members)
            self.threads[rank] = [
                Thread(number, list(part)) for number, part in enumerate(program.parts[rank])
            ]
        self.misjudge_free_threads = True

    def step(self) -> bool:
        """One thread of one rank does one thing; False when nothing can happen any more."""
        moves = [
            (rank, thread)
            for rank, threads in self.threads.items()
            if self.run.ranks[rank].process.alive
            for thread in threads
            if (thread.waits and self._may_end(rank, thread.waits))
            or (not thread.waits and thread.todo)
        ]
        leaving = [
            rank
            for rank, threads in self.threads.items()
            if self.run.ranks[rank].process.alive
            and not any(thread.todo or thread.waits for thread in threads)
        ]
        if leaving and (not moves or self.rng.random() < 0.2):
            self._leave(self.rng.choice(leaving))
            return True
        if not moves:
            return False
        rank, thread = self.rng.choice(moves)
        self._move(self.run.ranks[rank], thread)
        if self.rng.random() < 0.05:
            self.run.passes(self.rng.choice([0.01, 0.6, 3.0, 30.0]))
        return True

    def finish(self) -> None:
        """Until everybody has finished or is stuck."""
        while self.step():
            pass

    def look(self) -> Snapshot:
        """Freeze one rank after the other, with progress in between."""
        frozen = {}
        order = list(self.run.ranks)
        self.rng.shuffle(order)
        for rank in order:
            frozen[rank] = self.run.ranks[rank].frozen()
            if self.misjudge_free_threads and self.rng.random() < 0.1:
                frozen[rank] = replace(frozen[rank], free_threads=-1)
            for _ in range(self.rng.choice([0, 0, 1, 3])):
                self.step()
        return Snapshot(self.run.now_ns, self.run.size, frozen)

    def diagnose_now(self) -> Diagnosis:
        """Two looks at what stands still."""
        self.misjudge_free_threads = False
        previous = self.look()
        self.run.passes(5.0)
        return diagnose(self.look(), previous, PATIENT)

    def _leave(self, rank: int) -> None:
        builder = self.run.ranks[rank]
        live = [key for key, group in builder.groups.items() if group.state == 2]
        if live and self.rng.random() < 0.5:
            for key in live:
                builder.destroys(*key)
        else:
            builder.exits(0)

    def _move(self, builder: RankBuilder, thread: Thread) -> None:
        if thread.waits:
            builder.goes_on(thread.number)
            call, thread.waits = thread.waits, None
            if call.signature.peer == ANY_SOURCE:
                sources = self._arrived(builder.rank, call)
                builder.takes(self.rng.choice(sources), tag=call.signature.tag)
        else:
            step = thread.todo.pop(0)
            blocks = self._blocks(builder.rank, step)
            call = builder.calls(
                step.signature, group=step.group, waits=blocks, thread=thread.number
            )
            thread.waits = call if blocks else None
        threads = self.threads[builder.rank]
        builder.free_threads = sum(row.waits is None and bool(row.todo) for row in threads)
        if not any(row.waits for row in threads):
            builder.free_threads = 1

    def _blocks(self, rank: int, step: Step) -> bool:
        """A root's broadcast, a reduce to another and a send may be taken by a buffer."""
        signature = step.signature
        certain = OPS[signature.op].certain
        buffered = (
            signature.op == "send"
            or (certain == "root" and signature.root == rank)
            or (certain == "to_root" and signature.root != rank)
        )
        return not (buffered and self.rng.random() < 0.5)

    def _may_end(self, rank: int, call: Call) -> bool:
        peer = call.signature.peer
        if peer == ANY_SOURCE:
            return bool(self._arrived(rank, call))
        if peer is not None:
            sends = call.signature.op == "send"
            row = (call.group, "recv" if sends else "send", rank, call.signature.tag)
            other = self.run.ranks[peer].channels.get(row)
            taken = other.taken if sends and other else 0
            if not sends:
                own = self.run.ranks[rank].channels[call.group, "recv", peer, call.signature.tag]
                taken = -own.taken
            return other is not None and other.issued + taken > call.seq
        needed: tuple[int, ...] = self.program.groups[call.group[0]]
        rule = OPS[call.signature.op]
        if rule.certain == "root" and call.signature.root != rank:
            assert call.signature.root is not None
            needed = (call.signature.root,)
        for other in needed:
            found = self.run.ranks[other].history.at(call.group, call.seq)
            if found is None or agreement_key(found.signature) != agreement_key(call.signature):
                return False
        return True

    def _arrived(self, rank: int, call: Call) -> list[int]:
        """The sources of messages that a receive from any source may take."""
        tag = call.signature.tag
        own = self.run.ranks[rank].channels
        found = []
        for source, other in self.run.ranks.items():
            sent = other.channels.get((call.group, "send", rank, tag))
            row = own.get((call.group, "recv", source, tag))
            if sent is not None and sent.issued > (row.issued + row.taken if row else 0):
                found.append(source)
        return found
