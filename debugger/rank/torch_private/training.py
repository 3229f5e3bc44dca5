"""The events of a training loop between its calls: batches, steps, losses that are scaled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from .probe import Private, WatchedPart, Wrapped, after, before, patch

_AVERAGERS = "torch.distributed.algorithms.model_averaging.averagers"
_LOCAL_SGD = "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook"

DATA_END = WatchedPart(
    "data_end",
    "it is not known which rank ran out of data",
    Private("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", ("self",)),
)
AVERAGING = WatchedPart(
    "model_averaging",
    "replicas that are averaged now and then are compared as if they were not",
    Private(_AVERAGERS, "ModelAverager.__init__", ("self",)),
    Private(_LOCAL_SGD, "PostLocalSGDState.__init__", ("self",)),
)
SCALING = WatchedPart(
    "loss_scaling",
    "a GradScaler is not noticed, whose overflows are none",
    Private("torch.amp", "GradScaler._lazy_init_scale_growth_tracker", ("self",)),
)
JOINING = WatchedPart(
    "joined_steps",
    "steps that Join makes for a rank without inputs are taken for the program's own",
    Private("torch.distributed.algorithms.join", "Join.__exit__", ("self",)),
)
BACKWARD = WatchedPart(
    "backward_calls",
    "gradients that a program has forgotten to sum are not noticed",
    Private("torch", "_C._current_graph_task_id"),
)


@DATA_END
def on_data_end(note: Callable[[int], None]) -> None:
    """Hear of a DataLoader's iterator that has no more batches; with how many it gave."""
    from torch.utils.data import dataloader

    def make(original: Wrapped) -> Wrapped:
        def following(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            except StopIteration:
                note(int(getattr(self, "_num_yielded", 0)))
                raise

        return following

    patch(dataloader._BaseDataLoaderIter, "__next__", make)


def on_model_replicated(model_class: Any, note: Callable[[Any], None]) -> None:
    """Hear of every DDP model, once it is made."""

    after(model_class, "__init__", lambda _, model, *__, **___: note(model))


@AVERAGING
def on_models_averaged(note: Callable[[], None]) -> None:
    """Hear of torch's own averagers of models (local SGD), as they are made."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging import averagers

    before(averagers.ModelAverager, "__init__", lambda *_, **__: note())
    before(post_localSGD_hook.PostLocalSGDState, "__init__", lambda *_, **__: note())


@SCALING
def on_loss_scaling(note: Callable[[], None]) -> None:
    """Hear of each enabled GradScaler, FSDP's included, at its first loss."""

    before(torch.amp.GradScaler, "_lazy_init_scale_growth_tracker", lambda *_: note())


def on_optimizer_steps(begins: Callable[[Any], None], ends: Callable[[Any], None]) -> None:
    """Hear of each step of each optimiser."""
    from torch.optim import optimizer

    def hook(tell: Callable[[Any], None]) -> Callable[..., None]:
        def call(stepping: Any, _args: Any, _kwargs: Any) -> None:
            if not torch.compiler.is_compiling():  # dynamo must not meet what follows
                tell(stepping)

        return call

    optimizer.register_optimizer_step_pre_hook(hook(begins))
    optimizer.register_optimizer_step_post_hook(hook(ends))


def cannot_look(hook: FrameType) -> bool:
    """Whether a step is no whole one of the program's, or its parameters cannot be read now. `hook`
    is the frame of the function that torch called.

    A step within another optimiser's is a part of that: ZeroRedundancyOptimizer's own brings the
    ranks together. One that Join makes for a rank without further inputs shadows those of the
    others: no backward came before it, and what gradients are there belong to nobody. The capture
    of a CUDA graph must not meet a wait for the device.
    """
    step = hook.f_back
    shadows = _shadowing()
    above = step.f_back if step is not None else None
    while above is not None:
        if step is not None and (above.f_code is step.f_code or above.f_code is shadows):
            return True
        above = above.f_back
    return capturing()


@functools.cache
@JOINING
def _shadowing() -> CodeType | None:
    """Returns the code that runs while Join makes the steps of a rank without inputs."""
    return getattr(JOINING.needs[0].find(), "__code__", None)


@BACKWARD
def current_backward() -> int | None:
    """A number of the backward that runs on this thread; negative where none does."""
    return int(torch._C._current_graph_task_id())


def capturing() -> bool:
    """Whether this thread captures a CUDA graph."""
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
