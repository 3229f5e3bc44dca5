"""Attention of tensors that are spread over a mesh, where GPUs are only pretended. torch shards it
by the kernels of GPUs alone, as context parallelism does; here those compute by the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .probe import Private, WatchedPart

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


def on_the_cpu() -> None:
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
