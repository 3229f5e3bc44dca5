"""A FileStore's file tells how many processes have it open: more than there will be were before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.torch_loaded import TorchLoaded

SCRIPT = """
import os, sys, time
from torch.distributed import FileStore
from distdebug.rank.process.init_process_group import _note_stale

class Recorder:
    def note(self, note, message, site):
        print(note.users, note.by_count, message)

os.environ["DISTDEBUG_RUN_STARTED"] = "1"
held = [FileStore("store", 9) for _ in range({left})]
_note_stale(Recorder(), "store", 0, {size}, by_attempt=False)
"""


@pytest.mark.parametrize(
    ("left", "size", "said"),
    [
        (5, 2, "5 True 5 processes have the FileStore store open"),
        (2, 2, "2 True 2 processes"),
        (12, 4, "12 True 12 processes"),
        (1, 2, ""),
        (5, 6, ""),
        (5, 0, ""),
        (0, 2, ""),
    ],
)
def test_how_many_have_it_open(
    left: int, size: int, said: str, tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    done = torch_loaded.python(SCRIPT.format(left=left, size=size), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said)
    assert bool(done.stdout) == bool(said)
