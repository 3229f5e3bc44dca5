"""Stores that a program makes itself: a file that was there before, and a host that leaves."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.zygote import Zygote

FILE = """
import os, sys
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(sys.argv[1], size)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""
# Of two ranks of gloo the one with the greater address connects, and the other one waits. So ports
# decide what becomes of ranks that find old addresses: where those have the greatest, all wait;
# where they have the least, a rank connects to nobody. Else they may as well meet. And each rank
# that is started again finds the old address of the other one, however fast that has been: it has
# the file as it was, for itself.
RESTARTED = """
import os, re, shutil, sys
import torch
import torch.distributed as dist

rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
path = sys.argv[1] + (attempt if sys.argv[2] == "fresh" else "")
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
if attempt == "1" and sys.argv[2] != "fresh":
    path = shutil.copy2(path, f"{path}-{rank}")
    port = {"greatest": b"\\xff\\xff", "least": b"\\0\\1"}[sys.argv[2]]
    with open(path, "r+b") as file:
        last = os.fstat(file.fileno()).st_mtime
        address, dead = rb"\\x02\\0..\\x7f\\0\\0\\x01", b"\\2\\0" + port + b"\\x7f\\0\\0\\1"
        changed, count = re.subn(address, dead, file.read(), flags=re.DOTALL)
        assert count >= 2, "gloo writes its addresses otherwise"
        file.seek(0)
        file.write(changed)
    os.utime(path, (last, last))
method = "file://" + path
dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
dist.all_reduce(torch.ones(2))
if attempt == "0" and rank == 1:
    raise ValueError("a bad sample")
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""
HOST = """
import os, sys
from datetime import timedelta
import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# The port is the kernel's choice, and comes through the store of the default group.
dist.init_process_group("gloo")
port = [dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)] if rank == 0 else []
number = [port[0].port if port else None]
dist.broadcast_object_list(number)
store = port[0] if port else dist.TCPStore("127.0.0.1", number[0], size, False)
store.set(f"ready {rank}", "yes")
store.wait([f"ready {other}" for other in range(size)])
dist.destroy_process_group()
if rank == 0:
    if sys.argv[1] == "leaves":
        sys.exit(0)
    store.set("late", "yes")
    store.get("read")
else:
    store.get("late")
    store.set("read", "yes")
"""


@pytest.mark.parametrize("left", ["text", "zeros", "length", "none"])
def test_a_file_that_something_else_writes_during_the_run(
    left: str, tmp_path: Path, zygote: Zygote
) -> None:
    """Its time says nothing: an earlier attempt of the run, or another program, has written it."""
    path = tmp_path / "rendezvous"
    data = {"text": b"hello\n" * 99, "zeros": bytes(999), "length": b"\7\0\0\0", "none": b""}[left]
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "if os.environ['RANK'] == '0':\n"
        f"    open(sys.argv[1] + '.new', 'wb').write({data!r})\n"
        "    os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "while not os.path.exists(sys.argv[1]): pass\n" + FILE
    )
    done = zygote.run(2, ["train.py", str(path)], tmp_path, ["--hang-timeout", "5"])
    if left == "none":
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    assert done.exit_code == 93, done.explain()
    (found,) = done.errors
    if left == "length":  # as one that is being written begins, and nothing follows
        assert (found["kind"], found["culprits"]) == ("stalled", [0, 1])
        return
    assert (found["kind"], found["cause"]) == ("join_timeout", "stale_store")
    assert "whose file holds what no FileStore has written" in found["message"]
    assert str(path) in found["message"]


@pytest.mark.parametrize("left", ["stale", "garbled", "empty", "none"])
def test_a_file_that_was_there_before(left: str, tmp_path: Path, zygote: Zygote) -> None:
    script, path = tmp_path / "train.py", tmp_path / "rendezvous"
    script.write_text(FILE)
    if left == "stale":  # as ranks that were killed leave it: with their addresses in it
        key, value = b"default_pg//cpu//0/0", b"\x00" * 40
        for text in (key, value) * 2:
            with path.open("ab") as file:
                file.write(len(text).to_bytes(8, "little") + text)
    elif left != "none":
        path.write_bytes(os.urandom(3000) if left == "garbled" else b"")
    if path.exists():
        os.utime(path, (time.time() - 3600,) * 2)
    flags = ["--hang-timeout", "5"]
    done = zygote.run(2, [str(script), str(path)], tmp_path, flags)
    if left in ("none", "empty"):
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    if left == "stale" and done.exit_code == 0:
        pytest.skip("this torch's group minds no key of an earlier run")
    assert done.exit_code == 93, done.explain()
    (found,) = done.errors
    assert (found["kind"], found["cause"]) == ("join_timeout", "stale_store")
    assert "whose file was written before this run" in found["message"]
    assert str(path) in found["message"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "file",
    ["greatest", *(pytest.param(name, marks=pytest.mark.long) for name in ("least", "fresh"))],
)
def test_the_file_of_an_earlier_attempt(file: str, tmp_path: Path) -> None:
    """Its ranks' addresses are dead; those that were started again wait for them."""
    (tmp_path / "train.py").write_text(RESTARTED)
    flags = ["--nproc-per-node", "2", "--max-restarts", "1", "--hang-timeout", "8"]
    done = runs.run("run", [*flags, "train.py", str(tmp_path / "rendezvous"), file], tmp_path)
    assert "rank_exception" in done.warnings, done.explain()
    if file == "fresh":
        assert (done.exit_code, done.errors) == (0, []), done.explain()
        return
    assert done.exit_code == 93, done.explain()
    (found,) = done.errors
    assert (found["kind"], found["cause"]) == ("join_timeout", "stale_store")
    assert "the ranks of an earlier attempt" in found["message"]


@pytest.mark.parametrize("host", ["leaves", "stays"])
def test_the_host_of_a_store_of_the_programs_own(host: str, tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "train.py").write_text(HOST)
    done = zygote.run(2, ["train.py", host], tmp_path)
    if host == "stays":
        assert (done.exit_code, done.report["findings"]) == (0, []), done.explain()
        return
    assert done.exit_code == 93, done.explain()
    (found,) = done.errors
    assert (found["kind"], found["culprits"], found["cause"]) == ("early_exit", [0], "store")
    assert "the store that it hosts ended with it" in found["message"]
