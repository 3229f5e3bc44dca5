"""Programs that are right, and unlike others in how they use threads, handles or torch's functions:
they run and end as they do alone, and nothing is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.zygote import Zygote

JOINS_ALL = """
# Waits for all the threads that there are, once and for all.
import threading
others = [threading.Thread(target=dist.get_rank) for _ in range(3)]
for one in others:
    one.start()
dist.all_reduce(torch.ones(2), async_op=True).wait()
for one in threading.enumerate():
    if one is not threading.main_thread():
        one.join()
assert threading.active_count() == 1, threading.enumerate()
"""
SENDS = """
# One line calls now torch's blocking send, now an isend that lies as many frames deeper: both ranks
# send first, more than gloo takes before there is a receive.
import functools
def logged(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner
@logged
def send_later(tensor, peer):
    return dist.isend(tensor, peer)
other, count = 1 - rank, 1 << 20
for send in (send_later, dist.send, send_later, send_later):
    given, got = torch.full((count,), float(rank)), torch.zeros(count)
    if send is dist.send and rank == 1:
        dist.recv(got, other)
    work = send(given, other)
    if send is not dist.send or rank == 0:
        dist.recv(got, other)
    if work is not None:
        work.wait()
    assert got.eq(other).all()
"""
REFUSED_COALESCING = """
# gloo has none, and the program goes on: its asynchronous calls must not wait for the others.
from torch.distributed.distributed_c10d import _coalescing_manager, _world
try:
    with _coalescing_manager(device=torch.device("cpu")):
        raise AssertionError("it is there after all")
except RuntimeError:
    _world.pg_coalesce_state.clear()
total, word = torch.ones(4), torch.zeros(2)
if rank == 0:
    work = dist.all_reduce(total, async_op=True)
    dist.recv(word, 1)
else:
    dist.send(torch.ones(2), 0)
    work = dist.all_reduce(total, async_op=True)
work.wait()
assert total.tolist() == [2.0] * 4
"""
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("{backend}")
rank = dist.get_rank()
{body}
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("body", "backend", "level"),
    [
        pytest.param(JOINS_ALL, "gloo", "DETAIL", id="joins_all"),
        pytest.param(JOINS_ALL, "tcp", "INFO", id="joins_all-tcp"),
        pytest.param(SENDS, "gloo", "INFO", id="sends"),
        pytest.param(REFUSED_COALESCING, "gloo", "DETAIL", id="refused_coalescing"),
    ],
)
def test_it_runs_as_it_does_alone(
    body: str, backend: str, level: str, tmp_path: Path, zygote: Zygote
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(body=body, backend=backend))
    run = zygote.run(2, [str(script)], tmp_path, ["--debug-level", level])
    assert run.exit_code == 0, run.explain()
    assert run.report["findings"] == []
    assert run.report["off"] == []
