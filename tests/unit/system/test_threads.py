"""Who sleeps until somebody connects, in each way in which a server does, who until a time, and who
sleeps else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from distdebug.system.proc import read_stat
from distdebug.system.threads import Asleep, asleep_in, lock_holder, lock_holders
from tests.support.waiting import until

_SERVER = """
import asyncio, select, socket, sys, time
way, path = sys.argv[1:]
one = socket.create_server(("127.0.0.1", 0))
if way == "unix":
    one = socket.socket(socket.AF_UNIX)
    one.bind(path)
    one.listen()
if "child" not in way:
    print(path if way == "unix" else "%s:%d" % one.getsockname(), flush=True)
async def serve():
    server = await asyncio.start_server(lambda *_: None, sock=one)
    await server.serve_forever()
async def never():
    await asyncio.Event().wait()
if way in ("accept", "unix"):
    one.accept()
elif way == "select":
    select.select([one], [], [])
elif way == "poll":
    polled = select.poll()
    polled.register(one)
    polled.poll()
elif way == "asyncio":
    asyncio.run(serve())
elif way == "no_server":
    asyncio.run(never())
elif way == "read":
    here, there = socket.socketpair()
    here.recv(1)
elif way in ("child", "any_child", "two_children"):
    import os, subprocess
    for _ in range(1 + (way == "two_children")):
        child = subprocess.Popen(["sleep", "1000"])
    print(child.pid, flush=True)
    os.waitpid(child.pid if way == "child" else -1, 0)
elif way == "select_other":
    here, there = socket.socketpair()
    select.select([here], [], [])
elif way == "sleep":
    time.sleep(1000)
elif way == "select_timeout":
    select.select([], [], [], 1000)
elif way == "asyncio_sleep":
    asyncio.run(asyncio.sleep(1000))
elif way == "select_other_timeout":
    here, there = socket.socketpair()
    select.select([here], [], [], 1000)
"""


@pytest.mark.parametrize("way", ["accept", "unix", "select", "poll", "asyncio"])
def test_who_waits_for_a_client(tmp_path: Path, way: str) -> None:
    address, found = _asleep(way, tmp_path / "socket")
    assert found == Asleep(listens_at=address)


@pytest.mark.parametrize("way", ["sleep", "select_timeout", "asyncio_sleep"])
def test_who_waits_for_a_time(tmp_path: Path, way: str) -> None:
    _, found = _asleep(way, tmp_path / "socket")
    assert found.wakes_in_s is not None
    assert not found.listens_at
    assert 0 < found.wakes_in_s <= 1000


@pytest.mark.parametrize("way", ["child", "any_child"])
def test_who_waits_for_a_child(tmp_path: Path, way: str) -> None:
    child, found = _asleep(way, tmp_path / "socket")
    assert found == Asleep(child=int(child))


@pytest.mark.parametrize(
    "way", ["two_children", "no_server", "read", "select_other", "select_other_timeout"]
)
def test_who_waits_for_something_else(tmp_path: Path, way: str) -> None:
    """It has a listening socket all the while."""
    assert _asleep(way, tmp_path / "socket")[1] == Asleep()


def test_who_has_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert asleep_in(ended.pid, ended.pid) == Asleep()


def _asleep(way: str, path: Path) -> tuple[str, Asleep]:
    """What such a process has for an address, and what is seen of it once it sleeps for good."""
    command = [sys.executable, "-c", _SERVER, way, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        quiet, ticks, found = 0, -1, Asleep()
        while quiet < 5:  # it has slept without a break for so many looks
            stat = read_stat(process.pid)
            assert stat is not None
            still = stat.state == "S" and stat.cpu_ticks == ticks
            quiet, ticks = quiet + 1 if still else 0, stat.cpu_ticks
            found = asleep_in(process.pid, process.pid)
            time.sleep(0.1)
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
    return address, found


def test_who_holds_the_lock_on_a_file(tmp_path: Path) -> None:
    """Two wait for it: the second one behind the first."""
    wants = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"
    path = tmp_path / "lock"
    with path.open("w") as held, ExitStack() as stack:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", wants, str(path)]))
            for _ in range(2)
        ]
        until(lambda: all(one.pid in lock_holders() for one in waiting))
        assert {lock_holders()[one.pid] for one in waiting} == {os.getpid()}
        assert asleep_in(waiting[1].pid, waiting[1].pid).awaits == str(path)
        assert (lock_holder(str(path)), lock_holder(__file__)) == (os.getpid(), 0)
        fcntl.flock(held, fcntl.LOCK_UN)
