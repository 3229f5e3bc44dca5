"""What a stack says of where a rank stands, as far as it hangs on the torch that is installed."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupMember
from torch.distributed.elastic.utils import store as elastic

from distdebug.inspection import source
from distdebug.inspection.stance import _NOT_A_MEMBER, stance
from distdebug.record.wording import RankState
from distdebug.supervisor.stacks.sights import Sight
from distdebug.supervisor.stacks.stacks import Frame

from .test_stance import thread


def test_where_torch_has_the_group() -> None:
    for name, place in source._GROUP_IS_AT.items():
        if place >= 0 and hasattr(dist, name):  # a newer torch has more of them
            parameters = list(inspect.signature(getattr(dist, name)).parameters)
            assert parameters[place] == "group", name
    for name in ("all_reduce", "broadcast", "all_gather", "all_to_all", "send", "recv", "isend"):
        assert list(inspect.signature(getattr(dist, name)).parameters)[2] == "group", name
    assert str(GroupMember.NON_GROUP_MEMBER) == _NOT_A_MEMBER


def test_who_waits_for_the_store_inside_of_torch(tmp_path: Path) -> None:
    """As in elastic's barrier."""
    file = inspect.getsourcefile(elastic.barrier) or ""
    lines, first = inspect.getsourcelines(elastic.barrier)
    number = first + next(at for at, row in enumerate(lines) if "store.wait(" in row)
    (tmp_path / "train.py").write_text("store_util.barrier(store, 3, 'ready')\n")
    user = Frame("main", str(tmp_path / "train.py"), 1)
    waits = Frame("barrier", file, number)
    found = stance(Sight(1, "S", [thread("MainThread", 1, waits, user)]))
    assert (found.doing, found.call, found.cause) == (RankState.STORE, "barrier()", "store")
    assert found.site is not None
    assert found.site.line == 1
    at_other_line = Frame("barrier", file, first)
    found = stance(Sight(1, "S", [thread("MainThread", 1, at_other_line, user)]))
    assert found.doing is RankState.CODE
