"""SyncBatchNorm where GPUs are only pretended. torch has its parts for GPUs alone; here they are
put together of what the CPU can do. Its collectives are torch's own."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .modules import Wrapped
from .probe import Private, WatchedPart, patch

SYNC_BATCH_NORM = WatchedPart(
    "planned_batch_norm",
    "SyncBatchNorm is refused where GPUs are pretended",
    Private("torch._C", "_get_privateuse1_backend_name", (), called=True),
    Private("torch.nn", "SyncBatchNorm.forward", ("self", "input")),
    Private(
        "torch.nn.parallel",
        "DistributedDataParallel._passing_sync_batchnorm_handle",
        ("self", "module"),
    ),
)


def on_the_cpu() -> None:
    """Makes the batch norm of several ranks run on the CPU in this process."""
    if not SYNC_BATCH_NORM.works:
        return
    given: Any = torch
    for function in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        setattr(given, function.__name__, function)
    patch(torch.nn.SyncBatchNorm, "forward", _as_on_a_device)
    ddp = torch.nn.parallel.DistributedDataParallel
    patch(ddp, "_passing_sync_batchnorm_handle", lambda _: lambda *_: None)


def _as_on_a_device(original: Wrapped) -> Wrapped:
    """Wraps a layer that wants its input on a device of some kind. It drops the statistics of ranks
    without any input, where it may wait for the device; all have some at the likeliest."""

    @functools.wraps(original)
    def forward(self: Any, given: Tensor) -> Any:
        private: Any = torch._C
        cuda: Any = torch.cuda
        name, capturing = private._get_privateuse1_backend_name, cuda.is_current_stream_capturing
        private._get_privateuse1_backend_name = lambda: given.device.type
        cuda.is_current_stream_capturing = lambda: True
        try:
            return original(self, given)
        finally:
            private._get_privateuse1_backend_name = name
            cuda.is_current_stream_capturing = capturing

    return forward


def _others(given: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [0, *range(2, given.dim())]


def _wide(row: Tensor, like: Tensor) -> Tensor:
    """A value for each channel, to be used with the whole."""
    return row.view(1, -1, *([1] * (like.dim() - 2)))


def batch_norm_stats(given: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each channel, in float32 at least."""
    exact = given.float() if given.dtype in (torch.float16, torch.bfloat16) else given
    variance, mean = torch.var_mean(exact, _others(given), correction=0)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats_with_counts(
    given: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns the statistics of all ranks' inputs together, from each rank's; the running ones move
    towards them."""
    del given
    share = counts.view(-1, 1).to(mean.dtype)
    total = share.sum()
    whole = (mean * share).sum(0) / total
    variance = ((invstd.square().reciprocal() - eps + (mean - whole).square()) * share).sum(0)
    if running_mean is not None:
        running_mean.lerp_(whole.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance / (total - 1)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return whole, torch.rsqrt(variance / total + eps)


def batch_norm_elemt(
    given: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """Returns the input normalized."""
    del eps
    found = (given - _wide(mean, given)) * _wide(invstd, given)
    if weight is not None:
        found = found * _wide(weight, given)
    if bias is not None:
        found = found + _wide(bias, given)
    return found.to(given.dtype)


def batch_norm_backward_reduce(
    gradient: Tensor,
    given: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """This rank's sums of the gradient, and of it times what the input is off the mean; and the
    gradients of weight and bias."""
    del weight, of_input, of_weight, of_bias
    total = gradient.to(mean.dtype).sum(_others(gradient))
    off_mean = (gradient * (given - _wide(mean, given))).to(mean.dtype).sum(_others(gradient))
    return total, off_mean, off_mean * invstd, total


def batch_norm_backward_elemt(
    gradient: Tensor,
    given: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    total: Tensor,
    off_mean: Tensor,
    counts: Tensor,
) -> Tensor:
    """The gradient of the input, from all ranks' sums."""
    count = counts.sum().to(mean.dtype)
    centred = (given - _wide(mean, given)) * _wide(invstd.square() * off_mean / count, given)
    scale = invstd if weight is None else invstd * weight
    found = (gradient - _wide(total / count, given) - centred) * _wide(scale, given)
    return found.to(given.dtype)
