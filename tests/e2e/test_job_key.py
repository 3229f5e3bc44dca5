"""The ranks of `distdebug run` on one host have a key that a reader of the store never learns."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import os
import torch
import torch.distributed as dist
import distcore
from distcore.bootstrap.handshake import fingerprint, job_key

dist.init_process_group("tcp")
rank = dist.get_rank()
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
neighbour = dist.TCPStore(*address, is_master=False)
stored = b" ".join(neighbour.multi_get(neighbour.list_keys()))
assert stored
key = job_key()
assert not key or key not in stored and key.hex().encode() not in stored
mine = torch.tensor([float(int(fingerprint(key)[:6] or "0", 16))])
least, most = mine.clone(), mine.clone()
dist.all_reduce(least, dist.ReduceOp.MIN)
dist.all_reduce(most, dist.ReduceOp.MAX)
assert least == most == mine
# The directory may be removed while it runs: groups are made as before.
dist.barrier()
name = next((one for one in ("DISTCORE_KEY_FILE", "DISTDEBUG_KEY_FILE") if one in os.environ))
if rank == 0 and key:
    os.unlink(os.environ[name])
dist.barrier()
dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))
print("key", len(key), os.environ[name], flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("whose", ["ours", "the user's", "nobody's"])
def test_who_has_a_key(whose: str, tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    extra, expected = {}, f"key 64 {tmp_path / 'run' / 'group.key'}"
    if whose != "ours":
        extra, expected = {"DISTCORE_KEY_FILE": ""}, "key 0"
    if whose == "the user's":
        own = tmp_path / "own"
        own.write_bytes(secrets.token_bytes(48))
        os.chmod(own, 0o600)
        extra, expected = {"DISTCORE_KEY_FILE": str(own)}, f"key 48 {own}"
    # What `run` says of its ranks, which the forked launcher does not; see test_neighbours.
    done = zygote.run(2, ["train.py"], tmp_path, extra={"DISTDEBUG_ONE_HOST": "1", **extra})
    assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
    assert done.stdout.count(expected) == 2, done.stdout
