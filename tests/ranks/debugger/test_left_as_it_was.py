"""To others torch's functions stay what they are, and torch's own hooks see what passes through."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from distdebug.reports import off
from tests.support import ranks
from tests.support.torch_loaded import TorchLoaded

SCRIPT = Path(__file__).parents[1] / "scripts" / "left_as_it_was.py"


def test_what_others_see_of_torch(tmp_path: Path, torch_loaded: TorchLoaded) -> None:
    run = ranks.forked(torch_loaded, tmp_path, 2, SCRIPT)
    assert run.run() == 0, run.explain()
    looked_at = [
        "builtins",
        "functions",
        "messages",
        "handles",
        "devices",
        "what a handle knows",
        "windows",
        "hooks",
        "nan check",
        "gather_single",
        "splits",
    ]
    for view in run.views():
        assert run.log(view.rank).splitlines() == looked_at, run.explain()
        made = [str(call.signature) for call in ranks.calls(view, SCRIPT)]
        gathers = ["gather_into_tensor(dst=0, float32[1,3])"]
        wanted = gathers if hasattr(dist, "gather_single") else []
        assert [text for text in made if text.startswith("gather")] == wanted, torch.__version__
        # The same messages, hooks or none: an all_reduce is on record before a hook may refuse it.
        hooked = 2 if hasattr(dist.ProcessGroup, "register_pre_hook") else 0
        checked = 2 if hasattr(dist.distributed_c10d, "NanCheckHook") else 0
        assert sum(text.startswith("all_reduce") for text in made) == 1 + hooked + checked
    parts = off.of_ranks({view.rank: view for view in run.views()})
    assert not parts, "what was refused was never done"
