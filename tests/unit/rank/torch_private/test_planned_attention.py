"""The attention of a GPU, by the kernels of the CPU: forward and backward it is torch's."""

from __future__ import annotations

from pathlib import Path

from tests.support.torch_loaded import TorchLoaded

SCRIPT = """
import torch
from torch.nn import functional
from distdebug.rank.torch_private import planned_attention as parts

usual = functional.scaled_dot_product_attention
torch.manual_seed(1)
given = [torch.randn(2, 3, 6, 8) for _ in range(3)]
for on, causal in ((False, False), (True, True), (True, False)):
    if on:
        parts.on_the_cpu()
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
