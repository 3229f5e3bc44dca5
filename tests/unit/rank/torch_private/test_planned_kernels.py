"""What GPUs alone have in torch, made by the CPU.

Attention, forward and backward, is torch's. The parts of SyncBatchNorm, put together for one rank,
are batch_norm, and statistics of two ranks are those of the whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from distdebug.rank.torch_private import planned_kernels as parts
from tests.support.torch_loaded import TorchLoaded

SCRIPT = """
import torch
from torch.nn import functional
from distdebug.rank.torch_private import planned_kernels as parts

usual = functional.scaled_dot_product_attention
torch.manual_seed(1)
given = [torch.randn(2, 3, 6, 8) for _ in range(3)]
for on, causal in ((False, False), (True, True), (True, False)):
    if on:
        parts.attention_on_the_cpu()
    rows = []
    for function in (usual, lambda *args, **more: parts.as_on_a_device(usual, *args, **more)):
        leaves = [one.clone().requires_grad_() for one in given]
        found = function(*leaves, is_causal=causal, scale=0.3)
        found.square().sum().backward()
        rows.append([found, *(one.grad for one in leaves)])
    torch.testing.assert_close(*rows)
mask = torch.ones(6, 6).tril().bool()
torch.testing.assert_close(
    parts.as_on_a_device(usual, *given, mask), usual(*given, attn_mask=mask)
)
print("through")
"""


def test_it_is_torchs(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    """In a process of its own: the kernels stay where they are registered."""
    done = torch_loaded.python(SCRIPT, tmp_path)
    assert (done.returncode, done.stdout) == (0, "through\n"), done.stderr


EPS = 1e-5


@pytest.fixture
def given() -> Tensor:
    return torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(1)) * 2 + 1


def test_it_is_batch_norm(given: Tensor) -> None:
    weight, bias = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.1, 0.2, 0.3])
    gradient = torch.randn(given.shape, generator=torch.Generator().manual_seed(2))
    of_torch = [one.clone().requires_grad_() for one in (given, weight, bias)]
    wanted = functional.batch_norm(of_torch[0], None, None, *of_torch[1:], True, 0.1, EPS)
    wanted.backward(gradient)

    mean, invstd = parts.batch_norm_stats(given, EPS)
    found = parts.batch_norm_elemt(given, weight, bias, mean, invstd, EPS)
    total, off_mean, of_weight, of_bias = parts.batch_norm_backward_reduce(
        gradient, given, mean, invstd, weight, True, True, True
    )
    counts = torch.tensor([30], dtype=torch.int32)
    of_input = parts.batch_norm_backward_elemt(
        gradient, given, mean, invstd, weight, total, off_mean, counts
    )
    torch.testing.assert_close(found, wanted.detach())
    for one, other in zip((of_input, of_weight, of_bias), of_torch, strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-4, atol=1e-5)


def test_statistics_of_ranks_of_different_size_make_those_of_all(given: Tensor) -> None:
    pieces = given.split([2, 4])
    rows = [parts.batch_norm_stats(piece, EPS) for piece in pieces]
    counts = torch.tensor([10.0, 20.0])
    running_mean, running_var = torch.zeros(3), torch.ones(3)
    mean, invstd = parts.batch_norm_gather_stats_with_counts(
        given,
        torch.stack([row[0] for row in rows]),
        torch.stack([row[1] for row in rows]),
        running_mean,
        running_var,
        0.1,
        EPS,
        counts,
    )
    wanted = parts.batch_norm_stats(given, EPS)
    torch.testing.assert_close(mean, wanted[0])
    torch.testing.assert_close(invstd, wanted[1])
    module = torch.nn.BatchNorm1d(3)
    module(given)
    torch.testing.assert_close(running_mean, module.running_mean)
    torch.testing.assert_close(running_var, module.running_var)
