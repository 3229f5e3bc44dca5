"""Every call on real ranks against what must come out: the public suite, random sequences, and a
soak that must leave nothing behind."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ranks.distcore.conftest import Join
from tests.support.crew import Crew
from tests.support.known_calls import (
    CALLS,
    DTYPES,
    LAYOUTS,
    REDUCE_OPS,
    REDUCING,
    KnownCall,
    can_reduce,
)
from tests.support.torch_loaded import TorchLoaded

if TYPE_CHECKING:
    from distdebug.testing.rank_session import DistRank

# Of torch's own functions, which the calls are made by: deprecated names, and complex halves.
pytestmark = pytest.mark.filterwarnings("ignore")
GROUPS = [[0, 1], [3, 1, 2], [2, 0], [1, 2, 3, 0], [3]]
SOAK_S = float(os.environ.get("DISTCORE_SOAK_S", "600"))
MEBIBYTE = 2**20


@pytest.mark.distributed(nproc=3, backend="tcp")
@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_conformance(join_alone: Join, transport: str) -> None:
    join_alone(DISTCORE_TRANSPORT=transport)
    from tests.support.conformance import check_backend

    assert len(check_backend("tcp")) > 500


@pytest.mark.distributed(nproc=2, backend="tcp")
def test_conformance_under_a_default_device(join_alone: Join) -> None:
    join_alone()
    import torch

    from tests.support.conformance import check_backend

    torch.set_default_device("meta")
    try:
        assert len(check_backend("tcp", dtypes=["float32"])) > 150
    finally:
        torch.set_default_device("cpu")


class Crews:
    """A crew for as long as its ranks live: a failed sequence may leave a group broken."""

    def __init__(self, loaded: TorchLoaded, directory: Path) -> None:
        self._loaded = loaded
        self._directory = directory
        self._numbers = itertools.count()
        self.crew: Crew | None = None

    def run(self, calls: list[tuple[int, dict[str, Any]]]) -> list[Any]:
        if self.crew is None:
            directory = self._directory / str(next(self._numbers))
            self.crew = Crew(self._loaded, directory, 4)
            self.crew.everyone("init", path=str(directory / "store"), groups=GROUPS)
        try:
            return self.crew.everyone("calls", calls=calls)
        except AssertionError:
            self.end()
            raise

    def end(self) -> None:
        if self.crew is not None:
            self.crew.__exit__()
            self.crew = None


@pytest.fixture
def crews(tmp_path: Path, torch_loaded: TorchLoaded) -> Iterator[Crews]:
    made = Crews(torch_loaded, tmp_path)
    yield made
    made.end()


REDUCIBLE = [(op, dtype) for op in REDUCE_OPS for dtype in DTYPES if can_reduce(op, dtype)]
SHAPES = st.one_of(
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.integers(0, 120_000).map(lambda count: (count,)),
)


@st.composite
def known_calls(draw: st.DrawFn) -> KnownCall:
    op = draw(st.sampled_from(list(CALLS)))
    reduce_op, dtype = "SUM", draw(st.sampled_from(DTYPES))
    if op in REDUCING:
        reduce_op, dtype = draw(st.sampled_from(REDUCIBLE))
    return KnownCall(
        op,
        dtype,
        reduce_op,
        draw(SHAPES),
        draw(st.integers(0, 7)),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 2**30)),
    )


@settings(
    derandomize=True,
    max_examples=80,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.tuples(st.integers(0, len(GROUPS)), known_calls()), min_size=1, max_size=16))
def test_any_sequence_of_calls(crews: Crews, sequence: list[tuple[int, KnownCall]]) -> None:
    """Right results, the same bits on all ranks of the group."""
    answers = crews.run([(index, asdict(call)) for index, call in sequence])
    for number, (index, call) in enumerate(sequence):
        found = {answer["digests"][number] for answer in answers} - {""}
        assert len(found) == 1, f"group {index}: {call}: not the same bits on all ranks"


def soak(dist_rank: DistRank, seconds: float, growth_mib: int) -> None:
    """`growth_mib`: room for what twelve groups remember of the texts of all these calls."""
    from tests.ranks.scripts import distcore_worker as worker

    rank, size = dist_rank.rank, dist_rank.world_size
    both = [group for group in GROUPS for _thread in range(2)]
    worker.make_groups(rank, size, [[0, 1, 2, 3], *both])
    found = worker.command_soak(rank, size, seconds=seconds, seed=int(seconds))
    assert min(found["made"]) > 10, f"it hardly got on: {found}"
    before, after = found["before"], found["after"]
    assert after["descriptors"] <= before["descriptors"] + 2, found
    assert after["threads"] <= before["threads"] + 3, found
    growth = after["memory_bytes"] - before["memory_bytes"]
    assert growth < growth_mib * MEBIBYTE, found


@pytest.mark.distributed(nproc=4, backend="tcp", timeout=110)
def test_soak(dist_rank: DistRank, join_alone: Join) -> None:
    join_alone(20.0, DISTCORE_TRANSPORT="auto")
    soak(dist_rank, 6, growth_mib=16)


@pytest.mark.long
@pytest.mark.timeout(2 * SOAK_S + 200)
@pytest.mark.distributed(nproc=4, backend="tcp", timeout=SOAK_S + 150)
@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_long_soak(dist_rank: DistRank, join_alone: Join, transport: str) -> None:
    """Ten minutes in all; DISTCORE_SOAK_S sets the seconds."""
    join_alone(20.0, DISTCORE_TRANSPORT=transport)
    soak(dist_rank, SOAK_S / 2, growth_mib=32)
