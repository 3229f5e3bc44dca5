"""Functions that torch has for GPUs alone, made by the CPU where GPUs are only pretended: attention
that is spread over a mesh, SyncBatchNorm, and random operators of DTensor.

torch shards attention by the kernels of GPUs alone, as context parallelism does; here those compute
by the CPU's. The parts of SyncBatchNorm are put together of what the CPU can do; its collectives
are torch's own. Before the first random operator of DTensor the ranks agree on the state of the
generator on GPUs, which is a call of all; then each draws its own part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from .probe import Private, WatchedPart, Wrapped, instead, patch

ATTENTION = WatchedPart(
    "planned_attention",
    "attention of tensors that are spread over a mesh is refused where GPUs are pretended",
    Private("torch", "ops.aten._scaled_dot_product_flash_attention.default"),
    Private("torch", "ops.aten._scaled_dot_product_flash_attention_backward.default"),
    Private("torch", "ops.aten._scaled_dot_product_flash_attention_for_cpu.default"),
    Private("torch", "ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default"),
)
NAME = "scaled_dot_product_attention"
_KERNEL = "_scaled_dot_product_flash_attention"
_ATEN: Any = torch.ops.aten
_libraries: list[Any] = []


def attention_on_the_cpu() -> None:
    """Makes attention run on the CPU in this process."""
    if not ATTENTION.works or _libraries:
        return
    made: Any = torch.library.Library
    library = made("aten", "IMPL")
    library.impl(_KERNEL, _forward, "CPU")
    library.impl(f"{_KERNEL}_backward", _backward, "CPU")
    _libraries.append(library)


def as_on_a_device(
    usual: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> Tensor:
    """torch's function, by the kernel that a GPU has for it. With a mask, or groups of queries, it
    is the `usual` one."""
    if attn_mask is not None or more.get("enable_gqa") or not _libraries:
        return usual(query, key, value, attn_mask, dropout_p, is_causal, **more)
    kernel = getattr(_ATEN, _KERNEL)
    scale = more.get("scale")
    found: Tensor = kernel(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return found


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    del dropout_p, return_debug_mask  # which needs numbers of a GPU
    kernel = _ATEN._scaled_dot_product_flash_attention_for_cpu
    output, summed = kernel(query, key, value, 0.0, is_causal, scale=scale)
    state, unused = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return output, summed, None, None, query.size(2), key.size(2), state, unused, query.new_empty(0)


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    summed: Tensor,
    *about: Any,
    scale: float | None = None,
) -> Any:
    _, _, _, _, _, is_causal, *_ = about
    kernel = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
    given = (gradient, query, key, value, output, summed)
    return kernel(*given, 0.0, is_causal, scale=scale)


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


def batch_norm_on_the_cpu() -> None:
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
    instead(torch.nn.SyncBatchNorm, "forward", _as_on_a_device)
    ddp = torch.nn.parallel.DistributedDataParallel
    patch(ddp, "_passing_sync_batchnorm_handle", lambda _: lambda *_: None)


def _as_on_a_device(original: Wrapped, self: Any, given: Tensor) -> Any:
    """Calls a layer that wants its input on a device of some kind. It drops the statistics of ranks
    without any input, where it may wait for the device; all have some at the likeliest."""
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


_HOME = "torch.distributed.tensor._random"
_STATE_BYTES = 16

DTENSOR_RANDOM = WatchedPart(
    "planned_random",
    "a plan lacks the call by which the random operators of DTensor agree on GPUs",
    Private(_HOME, "is_rng_supported_mesh", ("device_mesh",)),
    Private(_HOME, "OffsetBasedRNGTracker.__init__", ("self", "device_mesh", "run_state_sync")),
    Private(_HOME, "OffsetBasedRNGTracker._distribute_region", ("self", "spec", "generator")),
    Private("torch.distributed.tensor._dispatch", "is_rng_supported_mesh", ("device_mesh",)),
)


@DTENSOR_RANDOM
def random_on_the_cpu() -> None:
    """Makes the random operators of DTensor run on the CPU in this process."""
    from torch.distributed.tensor import _dispatch, _random

    home: Any = _random
    dispatch: Any = _dispatch
    tracker: Any = home.OffsetBasedRNGTracker

    class Tracker(tracker):  # type: ignore[misc]
        def __init__(self, device_mesh: Any, run_state_sync: bool = True) -> None:
            del device_mesh
            self._device = torch.device("cpu")
            self._device_handle = torch.cuda
            self._use_distribute_region = True
            if run_state_sync:
                torch.distributed.broadcast(torch.zeros(_STATE_BYTES, dtype=torch.uint8), 0)

        @contextlib.contextmanager
        def _distribute_region(self, spec: Any, generator: Any = None) -> Iterator[None]:
            del spec, generator
            yield

    home.OffsetBasedRNGTracker = Tracker
    for module in (home, dispatch):
        module.is_rng_supported_mesh = lambda _: True
