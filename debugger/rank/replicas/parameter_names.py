"""The names of an optimiser's parameters in the modules that they belong to."""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import nn
from torch.optim import Optimizer

SHARDED = ("FullyShardedDataParallel", "FSDPModule")


def find_whole(optimizer: Optimizer) -> dict[int, str] | None:
    """Finds names as `find` does; None where a module has cut the parameters into shards, which are
    no replicas."""
    wanted = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for module in modules():
        if _is_sharded(module) and any(id(one) in wanted for one in module.parameters()):
            return None
    return find(optimizer)


def find(optimizer: Optimizer) -> dict[int, str]:
    """Returns names by the parameter's id. Looks at all objects of the process: some hundredths of
    a second."""
    names = {
        id(one): f'param_groups[{number}]["params"][{index}]'
        for number, group in enumerate(optimizer.param_groups)
        for index, one in enumerate(group["params"])
    }
    wanted = set(names)
    every = modules()
    children = {id(child) for module in every for child in module.children()}
    roots = [module for module in every if id(module) not in children]
    # Of several modules that hold a parameter (an average of models, say), the one with the most.
    found = [
        {id(one): name for name, one in root.named_parameters() if id(one) in wanted}
        for root in roots
    ]
    for of_root in sorted(found, key=len):
        names.update(of_root)
    return names


def modules() -> list[nn.Module]:
    """Returns all modules of this process."""
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]


def _is_sharded(module: Any) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = tuple(kind for name in SHARDED if (kind := getattr(fsdp, name, None)) is not None)
    return isinstance(module, kinds)
