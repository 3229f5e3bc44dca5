"""distcore's tcp backend with tensors of the CPU and of a GPU, which are staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ranks.distcore.conftest import Join

if TYPE_CHECKING:
    from distdebug.testing.rank_session import DistRank


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.distributed(nproc=2, backend="tcp")
@pytest.mark.parametrize("part", ["reductions", "moves", "in_order_with_the_device", "training"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_tensors_of_a_device(dist_rank: DistRank, join_alone: Join, device: str, part: str) -> None:
    """On a GPU all ranks share the first one: they are staged through memory, so that works."""
    join_alone()
    import torch

    import distcore as dist
    from tests.ranks.scripts import distcore_devices

    check = getattr(distcore_devices, part)
    check(dist_rank.rank, dist_rank.world_size, torch.device(device))
    dist.barrier()
