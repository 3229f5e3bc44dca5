"""Random programs: consistent ones never get an error; a changed call is found, with its rank."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdebug.diagnosis.diagnose import diagnose, verdict
from distdebug.record.signature import Signature

from .builder import all_gather, all_reduce, barrier, broadcast, recv, send
from .simulator import PATIENT, Program, Simulation, Step, random_program

QUIET = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)


@QUIET
@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 6), threads=st.integers(1, 3))
def test_a_consistent_program_never_gets_an_error(seed: int, ranks: int, threads: int) -> None:
    rng = random.Random(seed)
    program = random_program(rng, ranks=ranks, steps=12, threads=threads)
    simulation = Simulation(program, rng)
    previous = simulation.look()
    going = True
    while going:
        for _ in range(rng.choice([0, 1, 2, 5, 20])):
            going = simulation.step()
        if rng.random() < 0.3:
            simulation.run.passes(rng.choice([0.05, 1.0, 20.0]))
        snapshot = simulation.look()
        found = diagnose(snapshot, previous, PATIENT).findings
        assert not found, [(f, f.message, f.details) for f in found]
        previous = snapshot
        going = going and simulation.step()
    assert not simulation.diagnose_now().findings


def changed(rng: random.Random, signature: Signature) -> Signature:
    options = [all_reduce(4), all_reduce(16), all_gather(4), barrier(), broadcast(4, root=0)]
    options.append(all_reduce(4, dtype="float64"))
    return rng.choice([option for option in options if option != signature])


def with_fault(rng: random.Random, program: Program, fault: str) -> int | None:
    """Change one call of one rank in place; answers the rank, or None where it has no such call."""
    rank = rng.randrange(len(program.parts))
    part = rng.choice(program.parts[rank])
    places = [
        index
        for index, step in enumerate(part)
        if step.signature.peer is None and len(program.groups[step.group]) > 1
    ]
    if not places:
        return None
    place = rng.choice(places)
    if fault == "changed":
        part[place] = Step(part[place].group, changed(rng, part[place].signature))
    elif fault == "skipped":
        del part[place]
    else:
        extra = all_reduce(32)
        part.insert(place, Step(part[place].group, extra))
    return rank


@QUIET
@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(2, 6),
    threads=st.integers(1, 2),
    fault=st.sampled_from(["changed", "skipped", "added"]),
)
def test_one_changed_call_is_found_on_its_rank(
    seed: int, ranks: int, threads: int, fault: str
) -> None:
    rng = random.Random(seed)
    program = random_program(rng, ranks=ranks, steps=10, threads=threads)
    culprit = with_fault(rng, program, fault)
    if culprit is None:
        return
    simulation = Simulation(program, rng)
    simulation.finish()
    found = simulation.diagnose_now().findings
    first = verdict(found)
    stuck = any(rank.process.alive and rank.waits for rank in simulation.run.ranks.values())
    if first is None:
        assert not stuck, "ranks are stuck and nothing was found"
        return
    assert first.proven
    assert culprit in first.culprits, (first, first.message)
    if fault == "changed" and len(program.groups[first.group.name if first.group else "0"]) > 2:
        assert first.kind.endswith("_mismatch")
        assert first.culprits == (culprit,)


@QUIET
@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 4))
def test_who_is_stuck_behind_receives_from_any_source_is_told(seed: int, ranks: int) -> None:
    """And nobody else, while others go on: whoever is in a cycle never ends."""
    rng = random.Random(seed)
    program = Program({"0": tuple(range(ranks))}, {rank: [[]] for rank in range(ranks)})
    for _ in range(rng.randint(2, 7)):
        source, target = rng.sample(range(ranks), 2)
        program.parts[source][0].append(Step("0", send(target, 4)))
        program.parts[target][0].append(Step("0", recv(rng.choice([source, -1]), 4)))
    for [part] in program.parts.values():
        if rng.random() < 0.3:
            rng.shuffle(part)
        part.append(Step("0", barrier()))
    simulation = Simulation(program, rng)
    blamed = set()
    previous = simulation.look()
    while simulation.step():
        snapshot = simulation.look()
        for one in diagnose(snapshot, previous, PATIENT).findings:
            assert one.proven
            blamed.update(one.culprits)
        previous = snapshot
    last = simulation.diagnose_now().findings
    stuck = {number for number, rank in simulation.run.ranks.items() if rank.waits}
    assert bool(stuck) == bool(last), [one.message for one in last]
    assert all(one.proven for one in last)
    assert all(simulation.run.ranks[one].waits for one in blamed), blamed


@pytest.mark.parametrize("seed", range(5))
def test_a_dead_rank_is_the_only_cause(seed: int) -> None:
    rng = random.Random(seed)
    simulation = Simulation(random_program(rng, ranks=4, steps=12), rng)
    for _ in range(10):
        simulation.step()
    victim = simulation.run.ranks[2]
    if victim.process.alive:
        victim.exits(signal=9)
    simulation.finish()
    first = verdict(simulation.diagnose_now().findings)
    assert first is not None
    assert (first.kind, first.culprits) == ("rank_died", (2,))
