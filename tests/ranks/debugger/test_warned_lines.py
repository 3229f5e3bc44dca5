"""Warnings name the line that they would name without the layer, whatever it has wrapped."""

from __future__ import annotations

from pathlib import Path

from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "warned_lines.py"


def test_of_every_wrapped_function(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 1, SCRIPT)
    assert run.run() == 0, run.explain()
    rows = [line.split() for line in run.log(0).splitlines()]
    called = {name.rpartition(".distributed.")[2] for what, name in rows if what == "warned"}
    assert called >= {
        "DistributedDataParallel.__init__",
        "TestResult.addError",
        "distributed_c10d._new_group_with_tag",
        "init_process_group",
        "rpc.init_rpc",
        "torch.autograd.backward",
    }
    replaced = {name for what, name in rows if what == "replaced"}
    assert replaced <= {
        "torch.distributed.get_debug_level",
        "torch.distributed._make_distributed_pdb",
        "torch.distributed._DistributedPdb",
    }
