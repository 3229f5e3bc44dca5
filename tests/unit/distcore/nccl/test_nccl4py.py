"""What distcore asks of the real nccl4py reaches NCCL as it is meant, by its own numbers, and by
NCCL's rules for communicators that do not block: shown over a C stand-in for libnccl.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("nccl", reason="nccl4py is not installed: pip install 'distdebug[nccl]'")

HERE = Path(__file__)
SOURCE = HERE.parents[3] / "support" / "fake_nccl" / "libnccl.c"
LIMIT_S = 240

INT64, UINT8, FLOAT32, BFLOAT16, FLOAT8E5M2 = 4, 1, 7, 9, 11
SUM, MAX, AVG, OWN = 0, 2, 4, 1000


def line(name: str, count: int, dtype: int, op: int = -1, peer: int = -1) -> str:
    return f"{name} count={count} type={dtype} op={op} peer={peer} stream=77"


EXPECTED = [
    "init size=2 rank=0 blocking=0",
    line("all_reduce", 6, FLOAT32, SUM),
    line("all_reduce", 6, INT64, AVG),
    line("all_reduce", 6, UINT8, MAX),
    line("all_reduce", 6, FLOAT8E5M2, MAX),
    line("all_reduce", 12, FLOAT32, SUM),
    "op of 3f00 type=9 residence=1",  # a half, as bfloat16, in the host's memory
    line("all_reduce", 6, BFLOAT16, OWN),
    "no op 1000",
    "op of 3f000000 type=7 residence=1",
    line("all_reduce", 6, FLOAT32, OWN),
    "no op 1000",
    line("reduce", 6, FLOAT32, SUM, 1),
    line("reduce_scatter", 3, FLOAT32, SUM),
    line("all_gather", 3, FLOAT32),
    line("broadcast", 6, FLOAT32, peer=1),
    "group",
    line("broadcast", 3, FLOAT32, peer=0),
    line("recv", 6, FLOAT32, peer=1),
    line("send", 6, FLOAT32, peer=1),
    "end",
    "split color=0 key=1 blocking=0",
    "split color=-1 key=0 blocking=0",
    "finalize",
    "finalize",
    "destroy",
    "destroy",
    "init size=2 rank=0 blocking=0",
    "init size=2 rank=0 blocking=0",
    "group",
    "abort",
    "abort",
    "end",
]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch needs all of libnccl")
def test_what_reaches_nccl(tmp_path: Path) -> None:
    flags = ["-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run(["cc", *flags, "-o", tmp_path / "libnccl.so.2", SOURCE], check=True)
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, HERE.with_name("rank_on_nccl4py.py")],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "FAKE_NCCL_LOG": str(log)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert log.read_text().splitlines() == EXPECTED
