"""What a test in 4 ranks costs: with the plugin, and with torch's own harness, in one run.

    python tests/benchmarks/plugin_cost.py [TESTS]

Both run the same all_reduce over gloo, TESTS times (default 5), and are timed by pytest itself:
setup, body and teardown together. The plugin's first test starts its fork server: shown apart.
torch's harness is `torch.testing._internal.common_distributed.MultiProcessTestCase`, which spawns a
Python for each rank of each test.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support import plugin_sessions

OURS = """
import pytest
import torch
import torch.distributed as dist

@pytest.mark.distributed(nproc=4, timeout=300)
@pytest.mark.parametrize("number", range({tests}))
def test_ours(dist_rank, number):
    t = torch.ones(3) * dist_rank.rank
    dist.all_reduce(t)
    assert t[0] == 6
"""
TORCHS = """
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestTorchs(MultiProcessTestCase):
    world_size = 4

    def setUp(self):
        super().setUp()
        self._spawn_processes()

def body(self):
    store = dist.FileStore(self.file_name, self.world_size)
    dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
    t = torch.ones(3) * self.rank
    dist.all_reduce(t)
    assert t[0] == 6
    dist.destroy_process_group()

for number in range({tests}):
    setattr(TestTorchs, f"test_torchs_{{number}}", body)
"""


def main() -> None:
    tests = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory(prefix="distdebug-bench-") as name:
        folder = Path(name)
        plugin_sessions.write(folder, OURS.format(tests=tests + 1), "test_ours.py")
        plugin_sessions.write(folder, TORCHS.format(tests=tests), "test_torchs.py")
        # MultiProcessTestCase imports its test's module by name, in each of its processes.
        found = plugin_sessions.run(folder, "test_ours.py", "test_torchs.py", "-q")
    if found.exit_code:
        sys.exit(found.output)
    ours = [found.seconds[f"test_ours[{number}]"] for number in range(tests + 1)]
    torchs = [found.seconds[f"test_torchs_{number}"] for number in range(tests)]
    first, *others = ours
    sys.stdout.write(
        f"a test in 4 ranks, median of {tests} (least to most), in seconds\n"
        f"  the plugin       {_row(others)}   the first: {first:.2f}\n"
        f"  torch's harness  {_row(torchs)}\n"
        f"  ratio            {statistics.median(torchs) / statistics.median(others):.1f}\n"
    )


def _row(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
