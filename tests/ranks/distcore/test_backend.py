"""distcore's tcp backend: programs to torch.distributed's documentation, in real processes."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ranks.distcore.conftest import Join

if TYPE_CHECKING:
    from distdebug.testing.rank_session import DistRank

SCENARIOS = "tests.ranks.scripts.distcore_"
NAMES = [
    (part, name)
    for part in ("calls", "trouble", "layers", "hooks", "as_gloo", "operators")
    for name in re.findall(
        r"^def scenario_(\w+)",
        (Path(__file__).parents[1] / "scripts" / f"distcore_{part}.py").read_text(),
        re.MULTILINE,
    )
]
TOGETHER = ("calls", "layers", "hooks", "operators")
"""Parts whose scenarios leave the default group as it was."""
MAKES_ANEW = "again"
"""The scenario after which another default group is there."""


def play(dist_rank: DistRank, part: str, name: str) -> None:
    getattr(import_module(SCENARIOS + part), f"scenario_{name}")(
        dist_rank.rank, dist_rank.world_size
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.distributed(nproc=3, backend="tcp")
@pytest.mark.parametrize("part", TOGETHER)
def test_scenarios(dist_rank: DistRank, join_alone: Join, part: str) -> None:
    """One after the other, as a program makes them; each alone is one of the long tests."""
    join_alone(DISTCORE_TRANSPORT="auto")
    for _, name in sorted(one for one in NAMES if one[0] == part and one[1] != MAKES_ANEW):
        play(dist_rank, part, name)
    if (part, MAKES_ANEW) in NAMES:
        play(dist_rank, part, MAKES_ANEW)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.distributed(nproc=3, backend="tcp")
@pytest.mark.parametrize(("part", "name"), [one for one in NAMES if one[0] not in TOGETHER])
def test_scenario(dist_rank: DistRank, join_alone: Join, part: str, name: str) -> None:
    join_alone(DISTCORE_TRANSPORT="auto")
    play(dist_rank, part, name)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.distributed(nproc=2, backend="tcp")
@pytest.mark.parametrize(("part", "name"), NAMES)
def test_scenario_without_shared_memory(
    dist_rank: DistRank, join_alone: Join, part: str, name: str
) -> None:
    join_alone(DISTCORE_TRANSPORT="tcp")
    play(dist_rank, part, name)


@pytest.mark.distributed(nproc=4, backend="tcp")
@pytest.mark.parametrize(("wish", "steps"), [("ring", 6), ("ring,all_reduce:doubling", 2)])
def test_the_user_chooses_the_algorithm(join_alone: Join, wish: str, steps: int) -> None:
    join_alone(DISTCORE_ALGORITHM=wish)
    import torch

    import distcore as dist

    dist.all_reduce(torch.ones(100))
    assert dist.group.WORLD._session._mesh._step == steps
