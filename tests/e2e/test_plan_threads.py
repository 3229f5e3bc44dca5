"""Planned ranks whose main thread waits for another one of theirs: the wait of that thread is the
rank's; and ranks that may still do something while one of their threads waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.planned import plan
from tests.support.torch_loaded import TorchLoaded

BEGINS = """
import asyncio, queue, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
flag = torch.tensor([1])
dist.all_reduce(flag)
"""
WAYS = """
ways = sys.argv[1:]

def run(way):
    done, results = threading.Event(), queue.Queue()

    def together():
        dist.all_reduce(flag)  # <- victim
        done.set()
        results.put(flag)

    if way == "future":
        with ThreadPoolExecutor(1) as pool:
            pool.submit(together).result()
        return
    if way == "asyncio":
        asyncio.run(asyncio.to_thread(together))
        return
    thread = threading.Thread(target=together, daemon=True)
    thread.start()
    {"join": thread.join, "event": done.wait, "queue": results.get}[way]()

for way in ways:
    if rank < size - 1 or len(ways) > 1:
        run(way)
"""
THREADS = ("join", "future", "queue", "event", "asyncio")
AT_THE_END = """
if rank < size - 1:
    threading.Thread(target=lambda: dist.all_reduce(flag)).start()  # <- victim
"""
WATCHED = """
stop = threading.Event()

def watch():
    while not stop.wait(0.01):
        sum(range(20_000))

threading.Thread(target=watch, daemon=True).start()
if rank < size - 1:
    dist.all_reduce(flag)  # <- victim
stop.set()
"""
MAY_GO_ON = """
import multiprocessing
side = dist.new_group()

def works(_):
    until_s = time.process_time() + 0.6
    while time.process_time() < until_s:
        pass

thread = threading.Thread(target=lambda: dist.barrier(group=side))
if rank == 0:
    thread.start()
    if sys.argv[1] == "pool":
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.map(works, [None])
    elif sys.argv[1] == "timer":
        rings = threading.Event()
        threading.Timer(0.6, rings.set).start()
        rings.wait()
    else:
        thread.join(timeout=0.6)
    dist.all_reduce(flag)
    thread.join()
else:
    dist.all_reduce(flag)
    dist.barrier(group=side)
"""


def line_of(script: Path) -> int:
    lines = script.read_text().splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.endswith("# <- victim"))


@pytest.mark.parametrize("way", [*THREADS, "at the end", "watched"])
def test_a_thread_s_wait_is_the_rank_s(tmp_path: Path, way: str, torch_loaded: TorchLoaded) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGINS + {"at the end": AT_THE_END, "watched": WATCHED}.get(way, WAYS))
    done = plan(torch_loaded, ["-n", "3", str(script), way], tmp_path)
    (finding,) = done.report["findings"]
    assert (finding["kind"], finding["culprits"], finding["proven"]) == ("early_exit", [2], True)
    assert finding["victims"] == [0, 1]
    lines = {finding["ranks"][str(rank)]["location"]["line"] for rank in (0, 1)}
    assert lines == {line_of(script)}


def test_a_thread_that_comes_through_lets_the_main_thread_go_on(
    tmp_path: Path, torch_loaded: TorchLoaded
) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGINS + WAYS)
    done = plan(torch_loaded, ["-n", "3", str(script), *THREADS], tmp_path)
    assert (done.exit_code, done.report["findings"]) == (0, [])


@pytest.mark.parametrize("way", ["pool", "timer", "limit of time"])
def test_a_main_thread_that_goes_on_by_itself_is_given_its_time(
    tmp_path: Path, way: str, torch_loaded: TorchLoaded
) -> None:
    """It waits for another process, or not for ever, while a thread of its waits for the others."""
    script = tmp_path / "train.py"
    script.write_text(BEGINS + MAY_GO_ON)
    done = plan(torch_loaded, ["-n", "3", str(script), way], tmp_path)
    assert (done.exit_code, done.report["findings"]) == (0, [])
