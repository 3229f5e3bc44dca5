"""What tests in ranks need that are about distcore alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from distdebug.testing.rank_session import DistRank

Join = Callable[..., None]


@pytest.fixture
def join_alone(dist_rank: DistRank, monkeypatch: pytest.MonkeyPatch) -> Join:
    """`join_alone(timeout_s, NAME=value, ...)`: a default group on tcp, and all groups made later,
    without the layer in front of them, in an environment with these variables. The group that the
    plugin has made is destroyed."""
    import torch.distributed as dist

    from distdebug.rank.group.wrap import Groups

    def join(timeout_s: float = 30.0, **variables: str) -> None:
        store = dist.distributed_c10d._get_default_store()
        dist.destroy_process_group()
        monkeypatch.setattr(Groups, "_wrapped", lambda _self, created, *_rest: created)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        dist.init_process_group(
            "tcp",
            store=dist.PrefixStore("alone", store),
            rank=dist_rank.rank,
            world_size=dist_rank.world_size,
            timeout=timedelta(seconds=timeout_s),
        )

    return join
