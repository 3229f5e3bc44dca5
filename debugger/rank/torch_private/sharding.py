"""The parameters that FSDP, the first one and the second, shards together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from ...hook.loading import when_imported
from .modules import dist
from .probe import Private, WatchedPart, before

_LOST = "the order in which ranks shard their parameters is not compared"
_FSDP1 = Private("torch.distributed.fsdp._flat_param", "FlatParamHandle.__init__")
_FSDP2 = Private("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup.__init__")
SHARDING = {
    "FullyShardedDataParallel": WatchedPart("fsdp", _LOST, _FSDP1),
    "fully_shard": WatchedPart("fully_shard", _LOST, _FSDP2),
}
_GROUPS = ("shard_process_group", "replicate_process_group")


def on_sharding(note: Callable[[str, Any, Any], None]) -> None:
    """`note(wrapper, group, named)` hears of them, by their names in the module that is wrapped:
    once for each group over which they are spread."""

    def hear(wrapper: str, _: Any, params: Any, modules: Any, *more: Any, **__: Any) -> None:
        with contextlib.suppress(Exception):  # another release gives them in another way
            owners = modules if isinstance(modules, tuple) else (modules,)
            names = {id(one): name for owner in owners for name, one in owner.named_parameters()}
            places = (getattr(one, name, one) for one in more for name in _GROUPS)
            for group in dict.fromkeys(one for one in places if isinstance(one, dist.ProcessGroup)):
                note(wrapper, group, [(names[id(one)], one) for one in params])

    def watch(wrapper: str, module: Any) -> None:
        if SHARDING[wrapper].works:
            owner = SHARDING[wrapper].needs[0].path.partition(".")[0]
            before(getattr(module, owner), "__init__", partial(hear, wrapper))

    for wrapper, part in SHARDING.items():
        when_imported(part.needs[0].module, partial(watch, wrapper))
