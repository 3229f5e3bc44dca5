"""For whom a call waits: what the diagnosis and the plan each said of it before they had one model,
and what may never differ between the two columns of its table.

The old answers stand here as they stood in `facts/needs` and in `plan/model`.
"""

from __future__ import annotations

import random
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from distdebug.diagnosis.facts.blocking import Model, WaitsFor, certainly, on_device
from distdebug.diagnosis.facts.channels import Channels
from distdebug.diagnosis.facts.needs import Need, Needs
from distdebug.diagnosis.facts.world import Pending, World
from distdebug.record.ops import OPS, op_of
from distdebug.record.signature import Signature
from tests.unit.diagnosis.simulator import PATIENT, Simulation, random_program

ALL, ROOT, TREE, NOBODY = WaitsFor
SETTINGS = settings(max_examples=300, deadline=None, derandomize=True)

shapes = st.lists(st.integers(0, 40), min_size=1, max_size=2).map(tuple)
tensors = st.lists(st.tuples(st.just("float32"), shapes), max_size=3).map(tuple)
calls = st.builds(
    Signature,
    st.sampled_from([*OPS, "of_another_torch"]),
    tensors,
    tensors,
    root=st.none() | st.integers(0, 5),
)
backends = st.sampled_from(["", "gloo", "tcp", "mpi", "nccl", "xccl"])


def of_the_plan(signature: Signature, backend: str, size: int, rank: int, strict: bool) -> WaitsFor:
    certain = op_of(signature.op).certain
    others = (prod(shape) for _, shape in signature.others)
    if signature.tensors and not any(signature.counts) and not any(others):
        return ALL if strict else NOBODY
    if strict or certain == "all" or on_device(backend):
        return ALL
    is_root = signature.root == rank
    if backend == "gloo":
        if signature.op == "broadcast":
            return TREE
        if signature.op == "reduce":
            parts = min(signature.counts, default=0) >= 4 * size * size
            return ALL if is_root or parts else NOBODY
        return ALL if is_root else ROOT
    if certain == "root":
        return NOBODY if is_root else ROOT
    return ALL if is_root else NOBODY


def of_the_diagnosis(world: World, pending: Pending) -> Need | None:
    """Of a collective."""
    call, rank = pending.call, pending.rank
    view = world.view(rank, call.group) if call else None
    if call is None or view is None:
        return None
    certain = "all" if call.agrees else OPS[call.signature.op].certain
    root, absent = call.signature.root, world.absent(view, call.seq)
    if certain == "all" or (certain == "to_root" and rank == root):
        return Need(absent) if absent else None
    absent -= {rank}
    if certain == "root" and root in absent:
        return Need(frozenset({root}))
    lasted = world.now_ns - pending.wait.since_ns >= world.limits.settle_ns  # of few bytes
    return Need(absent, any_of=True, certain=False) if absent and lasted else None


@SETTINGS
@given(calls, backends, st.integers(1, 6), st.integers(0, 5), st.booleans())
def test_a_plan_is_answered_as_before(
    signature: Signature, backend: str, size: int, rank: int, strict: bool
) -> None:
    found = Model(strict=strict).collective(backend, signature, size, rank)
    assert found is of_the_plan(signature, backend, size, rank, strict)


@SETTINGS
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 2))
def test_a_rank_that_waits_is_judged_as_before(seed: int, ranks: int, threads: int) -> None:
    rng = random.Random(seed)
    simulation = Simulation(random_program(rng, ranks=ranks, steps=12, threads=threads), rng)
    for _ in range(rng.choice([1, 5, 20, 60])):
        simulation.step()
    simulation.run.passes(rng.choice([0.05, 1.0, 20.0]))
    world = World(simulation.look(), None, PATIENT)
    needs = Needs(world, Channels(world))
    for pending in world.all_pending:
        if pending.call is not None and pending.call.signature.peer is None:
            assert needs.of(pending) == of_the_diagnosis(world, pending)


@given(calls, backends, st.integers(1, 6), st.integers(0, 5))
def test_no_backend_waits_for_less_than_what_is_certain(
    signature: Signature, backend: str, size: int, rank: int
) -> None:
    """Else a rank were proven stuck that is not. (Calls of no elements are never seen to wait.)"""
    if not any(signature.counts):
        return
    beyond = {
        ALL: {ALL},
        ROOT: {ALL, ROOT, TREE},
        NOBODY: set(WaitsFor),
    }
    assert Model().collective(backend, signature, size, rank) in beyond[certainly(signature, rank)]
