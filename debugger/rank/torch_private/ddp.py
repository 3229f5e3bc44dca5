"""Inside DistributedDataParallel and FSDP: what DDP's logger knows and its reducer still waits for,
and the parameters that FSDP, the first one and the second, shards together."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from traceback import walk_tb
from typing import Any

import torch.autograd
import torch.nn.parallel

from ...hook.loading import when_imported
from .probe import DIST, Private, WatchedPart, Wrapped, after, before, dist, patch
from .training import on_model_replicated

# torch exports these names at run time, but its stubs do not say so.
DDP: Any = torch.nn.parallel.DistributedDataParallel
_DDP = "torch.nn.parallel.distributed"
_MODEL = "DistributedDataParallel"
STATISTICS = WatchedPart(
    "ddp",
    "what DistributedDataParallel knows of its models is not told",
    Private(DIST, "Logger._get_ddp_logging_data", ("self",), called=True),
    Private(DIST, "Logger.set_runtime_stats_and_log", ("self",)),
)
JOIN = WatchedPart(
    "join",
    "notices of Join that nobody waits for are taken for handles that were dropped",
    Private("torch.distributed.algorithms.join", "Join.notify_join_context", ("joinable",)),
)
UNUSED = WatchedPart(
    "ddp_unused",
    "parameters without gradient are not looked for",
    Private(_DDP, f"{_MODEL}._build_params_for_reducer", ("self",), called=True),
    Private(
        _DDP,
        f"{_MODEL}._build_debug_param_to_name_mapping",
        ("self", "parameters"),
        called=True,
    ),
    Private(_DDP, f"{_MODEL}._check_reducer_finalized", ("self",), called=True),
)

_INDICES = re.compile(r"indices which did not receive grad for rank \d+: ([\d ]+)")


@STATISTICS
def on_construction(observe: Callable[[Any], None]) -> None:
    """`observe(model)` is called with every DistributedDataParallel that was made."""
    on_model_replicated(DDP, observe)


@JOIN
def on_join_notices(note: Callable[[Any], None]) -> None:
    """`note(work)` is called with what Join gives to a model that tells it of an iteration. torch's
    own pages, and its ZeroRedundancyOptimizer, do not wait for it."""
    from torch.distributed.algorithms.join import Join

    after(Join, "notify_join_context", lambda work, *_, **__: note(work))
    Join.notify_join_context = staticmethod(Join.notify_join_context)  # type: ignore[method-assign]


@STATISTICS
def on_statistics(observe: Callable[[Any], None]) -> None:
    """`observe(logger)` is called in every forward, behind torch's own look at the last one."""

    after(dist.Logger, "set_runtime_stats_and_log", lambda _, logger, *__: observe(logger))


@UNUSED
def on_backward_end(
    observe: Callable[[], None], failed: Callable[[str, BaseException], None]
) -> None:
    """`observe()` is called at the end of every backward that is in no other one; `failed` hears
    of an exception that leaves it."""
    running: list[None] = []

    def make(original: Wrapped) -> Wrapped:
        def backward(*args: Any, **kwargs: Any) -> Any:
            running.append(None)
            try:
                result = original(*args, **kwargs)
            except Exception as error:
                failed("backward", error)
                raise
            finally:
                running.pop()
            if not running:
                observe()
            return result

        return backward

    patch(torch.autograd, "backward", make)


def logger_of(model: Any) -> Any:
    """The model's logger; None where DDP reduces nothing by itself."""
    return getattr(model, "logger", None)


def facts(logger: Any) -> dict[str, str | int]:
    """All that torch's logger knows: texts, and numbers (bytes, nanoseconds, 0 and 1)."""
    data = logger._get_ddp_logging_data()
    return {**data.strs_map, **data.ints_map}


def parameter_names(model: Any) -> dict[int, str]:
    """The qualified names of the parameters that are reduced, by the parameters' ids, in the order
    of the reducer's indices."""
    parameters, _ = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    return {id(one): str(names[n]).removeprefix(".") for n, one in enumerate(parameters)}


def without_gradient(model: Any) -> list[int] | None:
    """Indices of the parameters for whose gradient the reducer still waits in a backward that has
    begun; None where it waits for none. Empty where torch does not say which."""
    try:
        model._check_reducer_finalized()
    except RuntimeError as error:
        found = _INDICES.search(str(error))
        return [int(index) for index in found[1].split()] if found else []
    return None


def model_that_refused(error: BaseException) -> Any:
    """The DistributedDataParallel whose own code raised this error; None for any other error."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not frames or frames[-1].f_globals.get("__name__") != DDP.__module__:
        return None
    model = frames[-1].f_locals.get("self")
    return model if isinstance(model, DDP) else None


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
