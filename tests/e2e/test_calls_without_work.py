"""Calls on a GPU for which the backend hands out no work, as torch's NCCL does where the program
waits for a call itself, and in a batch of messages. A backend that does so stands in for it, with
tensors of the CPU that say they are a GPU's, and events that look into the group's store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

PROGRAM = """
import hashlib, os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from tests.support.fake_nccl.backend import on_cuda

how, is_late = sys.argv[1], sys.argv[2] == "late"
crossed = how == "two_groups" and is_late
made = 0


class Quiet(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.store = store

    def make(self, *_arguments):
        global made
        made += 1
        self.store.add(str(made), 1)

    allreduce = send = recv = make

    def getBackendName(self):
        return "quiet_nccl"

    def _get_backend(self, device):
        return self

    def _start_coalescing(self, device):
        pass

    def _end_coalescing(self, device):
        pass


class Event:
    def __init__(self, device):
        self.at = made

    def record(self, stream):
        pass

    def query(self):
        return not crossed and store.add(str(self.at), 0) == size


dist.Backend.register_backend("quiet_nccl", Quiet, devices=["cuda"])
torch.Event, torch.accelerator.current_stream = Event, lambda device: None
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("quiet_nccl", timeout=timedelta(seconds=60))
group = dist.group.WORLD
store = group._inner.store
tensor = on_cuda(torch.ones(4))
groups = [group]
if how == "two_groups":
    groups.append(dist.new_group([0, 1], backend="quiet_nccl"))
for step in range(4):
    if rank == 1 and step == 3 and is_late and not crossed:
        time.sleep(600)  # <- look here
    if how != "batched":
        for one in groups[::-1] if crossed and rank == 1 else groups:
            dist.all_reduce(tensor, group=one)
    else:
        with dist.distributed_c10d._coalescing_manager(group, torch.device("cuda"), async_ops=True):
            dist.isend(tensor, 1 - rank)
            dist.irecv(tensor, 1 - rank)
    if step == 3:  # as a host that waits for its GPU: in C, where it computes
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9 if is_late else 10**6)
"""


def look_here() -> int:
    before = PROGRAM.partition("# <- look here")[0]
    return before.count("\n") + 1


@pytest.mark.parametrize("how", ["alone", "batched"])
def test_a_rank_that_does_not_come(how: str, tmp_path: Path, zygote: Zygote) -> None:
    program = tmp_path / "quiet.py"
    program.write_text(PROGRAM)
    done = zygote.run(2, [str(program), how, "late"], tmp_path, ["--hang-timeout", "5"])
    assert (done.report["outcome"], done.exit_code) == ("missing_rank", 93), done.explain()
    (found,) = done.errors
    assert (found["culprits"], found["victims"]) == ([1], [0]), done.explain()
    assert found["ranks"]["1"]["location"]["line"] == look_here(), done.explain()
    what = "all_reduce" if how == "alone" else "send"
    assert f"rank 0 waits in {what}(" in found["message"], found


def test_calls_of_two_groups_in_opposite_order(tmp_path: Path, zygote: Zygote) -> None:
    """A stream makes its calls in the order in which they were queued."""
    program = tmp_path / "quiet.py"
    program.write_text(PROGRAM)
    done = zygote.run(2, [str(program), "two_groups", "late"], tmp_path, ["--hang-timeout", "5"])
    assert (done.report["outcome"], done.exit_code) == ("deadlock", 92), done.explain()
    (found,) = done.errors
    assert (found["culprits"], found["proven"]) == ([0, 1], False), done.explain()


@pytest.mark.parametrize("how", ["alone", "batched", "two_groups"])
def test_a_rank_that_does(how: str, tmp_path: Path, zygote: Zygote) -> None:
    program = tmp_path / "quiet.py"
    program.write_text(PROGRAM)
    done = zygote.run(2, [str(program), how, "in_time"], tmp_path, ["--hang-timeout", "5"])
    assert (done.report["outcome"], done.exit_code) == ("ok", 0), done.explain()
    assert done.report["findings"] == [], done.explain()
